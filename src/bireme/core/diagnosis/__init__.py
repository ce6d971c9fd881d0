"""Why a job died: lines of evidence, rules that know some of them, and the judgement. Pure."""
