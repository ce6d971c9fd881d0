"""Container images on this machine: what they are called, where they come from, what of them is kept.

Not here: running anything in one. The agent asks for an image (`messages`), a process of the user's own fetches it
(`__main__`), and what comes back is a folder that can be a root.
Invariant: nothing of an image is believed before it was checked, and nothing of it lands outside of its root.
"""
