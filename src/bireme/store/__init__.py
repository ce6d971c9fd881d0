"""Journal, snapshots, blobs and history on disk: the only place that imports a database."""
