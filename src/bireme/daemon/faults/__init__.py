"""What goes wrong, in the daemon: detectors are fed, decisions carried out, jobs looked into and their work saved."""
