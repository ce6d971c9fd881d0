"""The rules, one file a family. Data only: see `bireme.evidence.rulebook` for what they may say."""
