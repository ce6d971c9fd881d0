"""Records in the shape of Slurm's own --json (data_parser v0.0.40): what client libraries parse.

Pure: dicts in, dicts out; `envelope` adds what every answer has and makes the text.
"""
