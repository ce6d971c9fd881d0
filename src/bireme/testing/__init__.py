"""The test kit that ships with Bireme: the scenario language here, the engine conformance suite in `conformance/`.

Not imported by the product itself.
"""
