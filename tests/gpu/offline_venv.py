"""Makes a virtual environment for the tests on a machine that reaches no package registry: `README.md` beside this.

    python3 tests/gpu/offline_venv.py gpu-wheels .venv-gpu

Wheels are unpacked, not installed: such machines often have no pip. What the wheels do not bring (numpy, torch) comes
from the Python that runs this, even when that one is a virtual environment itself: `--system-site-packages` would then
show the packages of the Python below it instead. Bireme is taken from `src`. Standard library only.
Invariant: nothing outside the new folder is changed, and nothing is fetched.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "import numpy, starlette, uvicorn, httptools, msgspec, rich, jinja2, zstandard, pynvml, "
    "pytest_timeout, hypothesis, bireme"
)


def main(wheels: Path, folder: Path) -> int:
    found = sorted(wheels.glob("*.whl"))
    if not found:
        print(f"no wheels in {wheels}: tests/gpu/README.md says how to get them", file=sys.stderr)
        return 1
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    own = Path(subprocess.check_output([python, "-c", _WHERE], text=True).strip())
    for wheel in found:
        with ZipFile(wheel) as archive:
            archive.extractall(own)
    # After the wheels on the path: what we brought wins over what is here.
    here = [str(ROOT / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (own / "bireme-offline.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(here)))
    tried = subprocess.run([python, "-c", NEEDED], check=False)
    if tried.returncode == 0:
        print(f"{python} has Bireme from src and {len(found)} wheels; the rest is {sys.prefix}'s")
    return tried.returncode


_WHERE = "import sysconfig; print(sysconfig.get_path('purelib'))"

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python3 tests/gpu/offline_venv.py WHEELS FOLDER")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
