"""What the wheel installs. The command `postdate` and `python -m postdate` are its entry points.

Users import `postdate.producers` and nothing else. postdate's own packages `bridge` and `adapters` lie inside this
folder, because PyPI has packages of these names. pip would overwrite the files of one package with those of the other
and delete them with it. Only postdate's own processes put this folder on `sys.path`.

In a wheel this folder holds everything. In an editable install `bridge` and `adapters` are at the top of the
repository.
"""

from pathlib import Path

_HERE = Path(__file__).parent
_PACKED = (_HERE / "bridge").is_dir()

#: The folder that holds `bridge` and `adapters`.
HOME = _HERE if _PACKED else _HERE.parents[2]

if not _PACKED:
    __path__.append(str(HOME))
