"""Where images come from: registries, layouts, archives (layers), .sqsh and .sif files (file systems), folders."""
