"""What is put beside Bireme on a platform: manifests for Kubernetes, dashboards and alert rules."""
