"""Files of rules that operators write (`idle.toml`, `healing.toml`): what is read alike in all of them."""
