"""The image without a Docker engine: the Dockerfile's own instructions, carried out in roots made of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kept_builds import kept, key_of, toolchain

ROOT = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 240
QUICK_COMPILER = "tmp/quick-gcc"
"""In the root of a stage that compiles: gcc that does not optimise, as that takes four fifths of a build's time. How it
is told to is what tests/system/test_compiled_build.py looks at."""
COMPILER_PARTS = ("/usr/lib/gcc", "/usr/libexec/gcc")
"""Where Debian keeps the compiler proper: without them the command gcc can do nothing."""


@dataclass
class Instruction:
    """One instruction of a Dockerfile."""

    word: str
    rest: str
    line: int

    @property
    def arguments(self) -> list[str]:
        """The items of a JSON list (ENTRYPOINT, CMD)."""
        return [str(item) for item in json.loads(self.rest)]


@dataclass
class Stage:
    """One stage of a Dockerfile."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        """Its instructions of one kind."""
        return [one for one in self.instructions if one.word == word]

    def packages(self) -> set[str]:
        """The Debian packages that it installs."""
        found: set[str] = set()
        for run in self.all("RUN"):
            for step in run.rest.split("&&"):
                _, install, words = step.partition("apt-get install ")
                found |= {word for word in words.split() if install and not word.startswith("-")}
        return found

    def last(self, word: str) -> Instruction:
        """The instruction that counts where the last one wins."""
        return self.all(word)[-1]


def parse(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """A Dockerfile's global arguments and its stages, in order. Knows what this one uses."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        if raw.lstrip().startswith("#") or not raw.strip():
            continue
        start = start or number
        if raw.endswith("\\"):
            pending += raw[:-1].strip() + " "
            continue
        word, _, rest = (pending + raw.strip()).partition(" ")
        instruction = Instruction(word.upper(), rest.strip(), start)
        pending, start = "", 0
        if instruction.word == "FROM":
            base, _as, name = instruction.rest.split()
            current = stages[name] = Stage(name, base)
        elif current is None:
            assert instruction.word == "ARG", instruction
            name, _, default = instruction.rest.partition("=")
            arguments[name] = default
        else:
            current.instructions.append(instruction)
    return arguments, stages


def context_files(ignore: str) -> list[str]:
    """The build context: this checkout's files that .dockerignore lets through (an allow list, see there)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    lines = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "an allow list begins with *"
    allowed = [line[1:].removesuffix("**") for line in lines[1:] if line.startswith("!")]
    refused = [line.removesuffix("**") for line in lines[1:] if line.endswith("/**") and not line.startswith("!")]
    return [
        name
        for name in listed.stdout.splitlines()
        if any(name == one or (one.endswith("/") and name.startswith(one)) for one in allowed)
        and not name.startswith(tuple(refused))
        and (ROOT / name).exists()
    ]


class Builder:
    """Carries out stages, and runs what came out."""

    def __init__(self, directory: Path, wheels: Path, built: Iterable[str] = ()) -> None:
        """`wheels`: a directory with everything that pip may install; the network is not used."""
        self.arguments, self.stages = parse((ROOT / "Dockerfile").read_text())
        self._directory = directory
        self._wheels = wheels
        self._built = set(built)

    def root(self, name: str) -> Path:
        """The root directory of a stage."""
        return self._directory / name

    def environment(self, name: str) -> dict[str, str]:
        """The environment of a stage's processes."""
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
        for instruction in self.stages[name].all("ENV"):
            found |= dict(word.split("=", 1) for word in shlex.split(instruction.rest))
        return found

    def build(self, name: str) -> Path:
        """Build a stage and those it copies from."""
        root = self.root(name)
        if name in self._built:
            return root
        for directory in ("usr", "etc/ssl", "proc", "dev", "tmp", "root", "wheels"):
            (root / directory).mkdir(parents=True)
        for link in ("bin", "lib", "lib64", "sbin"):
            (root / link).symlink_to(f"usr/{link}")
        (root / "tmp").chmod(0o1777)
        # As in every Debian image; without it Python's ctypes looks for libraries with a compiler and temporary files.
        shutil.copy2("/etc/ld.so.cache", root / "etc/ld.so.cache")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        where = "/"
        for instruction in self.stages[name].instructions:
            if instruction.word == "WORKDIR":
                where = instruction.rest
                (root / where.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif instruction.word == "COPY":
                self._copy(root, where, instruction)
            elif instruction.word == "RUN" and instruction.rest.startswith("apt-get update "):
                self._insist_on_packages(self.stages[name].packages())
            elif instruction.word == "RUN":
                self._run(name, where, instruction)
        self._built.add(name)
        return root

    def _copy(self, root: Path, where: str, instruction: Instruction) -> None:
        words = shlex.split(instruction.rest)
        flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        into = root / os.path.join(where, target).lstrip("/")
        owner = int(flags["chown"].split(":")[0]) if "chown" in flags else None
        for source in sources:
            if "from" in flags:
                origin = self.build(flags["from"]) / source.lstrip("/")
                assert origin.is_dir(), f"COPY of {source}: not there"
                shutil.copytree(origin, into, symlinks=True, dirs_exist_ok=True)
            else:
                for name in context_files((ROOT / ".dockerignore").read_text()):
                    if source == "." or name == source:
                        path = into / name if source == "." else into / Path(name).name if target[-1] == "/" else into
                        path.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(ROOT / name, path)
        assert into.exists(), f"line {instruction.line}: nothing was copied"
        if owner is not None:
            os.chown(into, owner, owner)

    def _insist_on_packages(self, names: set[str]) -> None:
        """This machine's /usr is the base image's, so what would be installed there has to be here already."""
        assert names
        done = subprocess.run(["dpkg-query", "--show", *names], capture_output=True, text=True)
        assert done.returncode == 0, f"apt-get install {' '.join(names)}: {done.stderr}"

    def _run(self, name: str, where: str, instruction: Instruction) -> None:
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if "gcc" in self.stages[name].packages():
            quick = self.root(name) / QUICK_COMPILER
            quick.write_text('#!/bin/sh\nexec gcc "$@" -O0 -U_FORTIFY_SOURCE\n')
            quick.chmod(0o755)
            environment["CC"] = f"/{QUICK_COMPILER}"
        done = subprocess.run(
            self.command(
                name, ["/bin/sh", "-euc", instruction.rest], where=where, environment=environment, writable_root=True
            ),
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
        )
        assert done.returncode == 0, f"Dockerfile:{instruction.line}: {instruction.rest}\n{done.stdout}\n{done.stderr}"

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        where: str = "/",
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        writable_root: bool = False,
        writable: Iterable[str] = (),
        mounts: Mapping[Path, str] | None = None,
    ) -> list[str]:
        """An argument vector that runs `argv` in a stage's root."""
        root = shlex.quote(str(self.root(name)))
        prefix = os.path.realpath(sys.base_prefix)
        script = [f"mount --bind {root} {root}"]

        def show(source: str | Path, target: str, *, read_only: bool = True) -> None:
            at = f"{root}{shlex.quote(target)}"
            script.append(f"mount --bind {shlex.quote(str(source))} {at}")
            if read_only:
                script.append(f"mount -o remount,bind,ro {at}")

        show("/usr", "/usr")
        if "gcc" not in self.stages[name].packages():
            script += [f"mount -t tmpfs -o ro tmpfs {root}{part}" for part in COMPILER_PARTS if os.path.isdir(part)]
        if prefix != "/usr":
            show(prefix, "/usr/local")
        if writable_root:
            show(self._wheels, "/wheels")
        script += [f"mount --rbind /dev {root}/dev", f"mount -t proc proc {root}/proc"]
        for directory in writable:
            script += [
                f"mount -t tmpfs -o uid={user or 0},gid={user or 0},mode=0755 tmpfs {root}{shlex.quote(directory)}"
            ]
        for source, target in (mounts or {}).items():
            show(source, target)
        if not writable_root:
            script.append(f"mount -o remount,bind,ro {root}")
        # A Python whose library stands where it was built does not find it in another place.
        variables = {**self.environment(name), **(environment or {}), "LD_LIBRARY_PATH": "/usr/local/lib"}
        settings = " ".join(shlex.quote(f"{key}={value}") for key, value in variables.items())
        drop = (
            ""
            if user is None
            else f"setpriv --reuid {user} --regid {user} --clear-groups "
            "--no-new-privs --inh-caps=-all --bounding-set=-all "
        )
        inner = f"cd {shlex.quote(where)} && exec {drop}env -i {settings} {shlex.join(argv)}"
        script.append(f"exec chroot {root} /bin/sh -euc {shlex.quote(inner)}")
        return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", "\n".join(script)]


def built(target: str, directory: Path, wheels: Path) -> Builder:
    """A stage and those it copies from, in `directory`: links to what was built earlier from the same sources, as an
    engine's cache would have it, or built now."""
    sources = [ROOT / name for name in context_files((ROOT / ".dockerignore").read_text())]
    sources += [ROOT / "Dockerfile", ROOT / ".dockerignore", Path(__file__)]

    def build(place: Path) -> None:
        Builder(place, wheels).build(target)

    found = kept("images", key_of(sources, target, sys.base_prefix, *toolchain()), build)
    shutil.copytree(found, directory, symlinks=True, dirs_exist_ok=True, copy_function=_link)
    return Builder(directory, wheels, [stage.name for stage in found.iterdir()])


def _link(source: str, target: str) -> None:
    """Instead of a copy, where both are on one file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def locked_wheels(locks: Sequence[Path], cache: Path) -> Path:
    """Everything the locks name, fetched once with their sums checked; later runs need no network."""
    wheels = cache / "image-wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for lock in locks:
        stamp = wheels / f".{lock.stem}"
        if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
            continue
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--require-hashes",
             "--only-binary", ":all:", "--dest", str(wheels), "-r", str(lock)],
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{lock.name}: packages of the image cannot be fetched:\n{done.stderr}"
        stamp.write_bytes(lock.read_bytes())
    return wheels
