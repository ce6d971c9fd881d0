"""Others' pods on fake nodes. A package, so that the cluster which its tests share ends with them."""
