"""A job's boxes on this node: asked for, waited for, kept while anything runs in them, saved."""
