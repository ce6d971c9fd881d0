"""Starting one program with the rights, streams and limits that were ordered."""
