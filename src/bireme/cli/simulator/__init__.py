"""Commands that try things out instead of doing them: `bireme sim`, `whatif`, `snapshot`, `plan`."""
