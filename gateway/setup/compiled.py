"""
The relay's hot modules as compiled extensions (mypyc), made from the same sources, which stay the reference.

    python -m gateway.setup.compiled     builds them where they are missing: a C compiler, Python's headers, 40 seconds

A small request costs about 0.6 of what it costs with the sources (docs/relay-performance.md). Extensions are found by a
hash of the sources they were made from and of the interpreter: after any change, and wherever nothing was built, the
sources themselves run. Standard library only: the bootstrap uses it before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import StepFailed, run_step
from gateway.setup.progress import ProgressPrinter, Report, SetupProgress

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("lib", "vllm-gateway-compiled")
"""Below an environment."""
KEPT = 2
"""Builds: the present one, and the one that processes started before an upgrade may still load from."""
BUILDING = "building"
"""Where a build is made before it has its name: one that was interrupted is replaced by the next."""
FAILED = "failed"
LONGEST_REASON = 200
INTERPRETED = "--interpreted"
"""First argument of a gateway process that is to run the sources."""

_PACKAGES = ("admission", "proxy", "protocol", "routing")
_FURTHER = (
    *("api/client_transport", "api/inline"),
    *("fleet/breaker", "fleet/dispatcher", "fleet/lease", "fleet/member"),
    *("fleet/view", "log/events", "log/request_line", "candidate", "gaps", "record", "clock"),
    *("metrics/counters", "metrics/gathering", "metrics/pending"),
)
# Not compiled: modules that define msgspec structs, whose annotations mypyc replaces, and modules of Protocols.
_INTERPRETED = frozenset(
    {
        *("__init__", "interfaces", "plain_payloads", "request_payloads", "stream_payloads", "prompt_prefix"),
        *("errors_wire", "in_band", "members"),
    }
)
_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
sources = sys.argv[1:]
sys.argv[1:] = ["build_ext", "--inplace"]
# No configuration file: one that lies above the scratch folder, or a personal one, is somebody else's.
extensions = mypycify(["--config-file=", "--ignore-missing-imports", *sources], opt_level="2", debug_level="0")
for extension in extensions:
    # A warning that only some compiler gives is no reason to do without.
    extension.extra_compile_args = [one for one in extension.extra_compile_args if one != "-Werror"]
setup(name="compiled", packages=[], ext_modules=extensions)
"""


_IMPORT = """
import importlib, sys
from pathlib import Path
from gateway.setup.compiled import CompiledFinder
folder, *modules = sys.argv[1:]
sys.meta_path.insert(0, CompiledFinder(Path(folder)))
for name in modules:
    file = importlib.import_module(name).__file__
    assert file.startswith(folder), f"error: {name} was found in {file} and not in {folder}"
"""


def sources(root: Path = ROOT) -> tuple[Path, ...]:
    """The modules that are compiled, relative to `root`, the folder that holds the package `gateway`."""
    found = [file for package in _PACKAGES for file in sorted((root / "gateway" / package).glob("*.py"))]
    # An editor's lock file or a copy with a blank in its name is no module.
    modules = [file.relative_to(root) for file in found if file.stem.isidentifier() and file.stem not in _INTERPRETED]
    return (*modules, *(Path("gateway", f"{name}.py") for name in _FURTHER))


def compiled_key(root: Path = ROOT) -> str:
    """
    What extensions are made from: the sources, those whose types they rely on, this way of building them, the
    interpreter. Raises OSError.
    """
    compiled = sources(root)
    folders = {(root / file).parent for file in compiled}
    digest = hashlib.sha256(repr((sys.version, sysconfig.get_config_var("EXT_SUFFIX"), _BUILD, compiled)).encode())
    for file in sorted(file for folder in folders for file in folder.glob("*.py") if file.stem.isidentifier()):
        digest.update(f"{file.relative_to(root)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def compiled_folder(key: str, prefix: Path) -> Path:
    """Where the extensions of that key are, or would be, in the environment at `prefix`."""
    return prefix / FOLDER / key


def compiler(environ: Mapping[str, str]) -> str | None:
    """The C compiler: the operator's choice, the one Python was built with, or whatever there is; None without one."""
    configured = str(sysconfig.get_config_var("CC") or "cc").split()
    candidates = [one for one in (environ.get("CC", ""), configured[0], "cc", "gcc", "clang") if one.strip()]
    return next((one for one in candidates if shutil.which(one.split()[0], path=environ.get("PATH"))), None)


def built(root: Path = ROOT, prefix: Path | None = None) -> Path | None:
    """The folder with the extensions of the present sources, by default for this interpreter; None without them."""
    try:
        key = compiled_key(root)
    except OSError:  # the sources are not all there: whoever imports them will say so
        return None
    folder = compiled_folder(key, prefix or Path(sys.prefix))
    return None if finished(folder, key) is None else folder


def ensure_compiled(
    root: Path, prefix: Path, environ: Mapping[str, str], report: Report, *, again: bool = False
) -> bool:
    """
    Build the extensions of the sources below `root` into the environment at `prefix`, unless they are there.

    Returns whether they are there. False has been reported, with what would mend it: without them everything works and
    costs more. What failed once for these sources is tried `again`, or once its log is removed. Never raises OSError.
    """
    if built(root, prefix) is not None:
        return True
    try:
        key = compiled_key(root)
    except OSError as problem:
        report(SetupProgress("relay", "interpreted", f"the sources could not be read: {problem}"))
        return False
    folder = compiled_folder(key, prefix)
    parent, log = folder.parent, folder.parent / f"{key}.log"
    if not again and finished(parent / FAILED, key) is not None and log.exists():
        report(SetupProgress("relay", "interpreted", f"compiling failed earlier: {log}; remove it to try again"))
        return False
    chosen = compiler(environ)
    if chosen is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        version = ".".join(map(str, sys.version_info[:2]))
        packages = f"sudo apt-get install build-essential python{version}-dev"
        report(SetupProgress("relay", "interpreted", f"no C compiler or no Python.h to compile it with: {packages}"))
        return False

    try:
        return _built(root, key, prefix, {**environ, "CC": chosen}, report)
    except OSError as problem:  # somebody else's environment, a full disk
        report(SetupProgress("relay", "interpreted", f"the compiled modules could not be written: {problem}"))
        return False


def _built(root: Path, key: str, prefix: Path, environ: Mapping[str, str], report: Report) -> bool:
    folder = compiled_folder(key, prefix)
    parent, log = folder.parent, folder.parent / f"{key}.log"

    def waiting(holder: str) -> None:
        report(SetupProgress("relay", "waiting", f"process {holder} is compiling into {parent}"))

    with exclusive(parent / "lock", waiting) as lock:
        if finished(folder, key) is not None:
            return True
        report(SetupProgress("relay", "compiling", f"{len(sources(root))} modules, about 40 seconds, into {folder}"))
        building = parent / BUILDING
        try:
            if not _build(root, key, building, prefix, environ, lock, log):
                report(SetupProgress("relay", "interpreted", "the sources changed meanwhile; run it again"))
                return False
            finish(building, key, {})
            discard(folder)
            os.rename(building, folder)
        except StepFailed as failure:
            (parent / FAILED).mkdir(exist_ok=True)
            finish(parent / FAILED, key, {})
            report(
                SetupProgress("relay", "interpreted", f"compiling failed: {failure.reason[:LONGEST_REASON]}; see {log}")
            )
            return False
        finally:
            discard(building)
        _prune(parent, folder)
        report(SetupProgress("relay", "ready", str(folder)))
    return True


def _build(root: Path, key: str, folder: Path, prefix: Path, environ: Mapping[str, str], lock: int, log: Path) -> bool:
    """Into `folder`, from nothing. False: the sources are not those of the key. Raises StepFailed, OSError."""
    discard(folder)
    log.unlink(missing_ok=True)
    # A copy: mypyc writes beside the sources, and a failed build must leave nothing that would be imported.
    tree = folder / "source"
    shutil.copytree(
        root / "gateway", tree / "gateway", ignore=shutil.ignore_patterns("__pycache__", ".*"), symlinks=True
    )
    if compiled_key(tree) != key:
        return False
    python = str(prefix / "bin" / "python")
    files = [str(file) for file in sources(tree)]
    with_sources = {**environ, "MYPYPATH": str(tree)}
    run_step([python, "-c", _BUILD, *files], environ=with_sources, lock=lock, log=log, folder=folder, cwd=tree)
    for extension in sorted(one for one in tree.rglob("*.so") if not one.is_relative_to(tree / "build")):
        target = folder / extension.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(extension, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(tree)
    # As a gateway process will import them: what does not load here must not look finished.
    modules = [file.removesuffix(".py").replace("/", ".") for file in files]
    run_step([python, "-P", "-c", _IMPORT, str(folder), *modules], environ=environ, lock=lock, log=log, folder=folder)
    return True


def _prune(parent: Path, present: Path) -> None:
    others = [one for one in parent.iterdir() if one.is_dir() and one not in (present, parent / FAILED)]
    others.sort(key=lambda one: one.stat().st_mtime, reverse=True)
    for old in others[KEPT - 1 :]:
        discard(old)
        (parent / f"{old.name}.log").unlink(missing_ok=True)


class CompiledFinder(MetaPathFinder):
    """Finds modules among the extensions in a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
        self._files = {
            ".".join(file.relative_to(folder).parts).removesuffix(suffix): file for file in folder.rglob(f"*{suffix}")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib`."""
        file = self._files.get(fullname)
        return None if file is None else importlib.util.spec_from_file_location(fullname, file)


def activate(root: Path = ROOT, prefix: Path | None = None) -> bool:
    """Import the compiled modules from now on, if the present sources were compiled; whether they were."""
    folder = built(root, prefix)
    if folder is None:
        return False
    sys.meta_path.insert(0, CompiledFinder(folder))
    return True


def main() -> int:
    """Build what is missing; 0 when the extensions are there, 3 when this machine keeps them from being built."""
    try:
        report = ProgressPrinter(sys.stderr)
        return 0 if ensure_compiled(ROOT, Path(sys.prefix), os.environ, report, again=True) else 3
    except KeyboardInterrupt:
        print("Interrupted; the next run starts over.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
