"""A virtual machine whose kernel has TLS, with our files: `python -m tests.kernel_tls.machine SUITE COMMAND...`.

Debian's newest kernel for clouds of a suite (`bookworm`, `bookworm-backports`), QEMU without KVM (which may not be had;
nothing here is timed), and a file system that shows `/` read-only (virtiofs). It needs root, `qemu-system-x86` with a
`virtiofsd`, `busybox-static` and `kmod`; the kernel's package is downloaded once. Linux 6.12 does not start on the
emulation of QEMU 7.2, but on that of 10.0.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kquota" / "kernel-tls"
PACKAGES: Final = r"^linux-image-[0-9][0-9.+a-z-]*-cloud-amd64$"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MODULES: Final = ("virtio_pci", "virtiofs", "tls", "gcm", "ghash-generic", "ctr", "aesni-intel", "ghash-clmulni-intel")
VIRTIOFSD: Final = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")
MEMORY_MB: Final = 2048
LIMIT_S: Final = 1500
DONE: Final = "kquota: exit code "

INIT: Final = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t virtiofs -o ro host /root
for at in proc sys dev; do /bin/busybox mount -o bind /$at /root/$at; done
for at in tmp run; do /bin/busybox mount -t tmpfs tmpfs /root/$at; done
/bin/busybox mkdir -p /dev/shm && /bin/busybox mount -t tmpfs tmpfs /root/dev/shm
/bin/busybox ip link set lo up
/bin/busybox chroot /root /bin/sh -c {command}
echo "{done}$?"
/bin/busybox poweroff -f
"""


def kernel(suite: str) -> Path:
    """The unpacked package of Debian's newest kernel in a suite, downloaded if that was not done before."""
    unpacked = CACHE / suite
    if not unpacked.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            subprocess.run(["dpkg-deb", "-x", _downloaded(suite, Path(folder)), f"{folder}/unpacked"], check=True)
            version = next(Path(folder, "unpacked/lib/modules").iterdir()).name
            subprocess.run(["depmod", "-b", f"{folder}/unpacked", version], check=True)
            Path(folder, "unpacked").rename(unpacked)
    return unpacked


def _downloaded(suite: str, folder: Path) -> Path:
    """The package, from where this machine has Debian from, with lists of its own: the machine's stay as they are."""
    listed = _said("apt-get", "indextargets", "--format", "$(CREATED_BY) $(RELEASE) $(SITE)")
    codename = suite.removesuffix("-backports")
    site = next(line.split()[2] for line in listed.splitlines() if line.split()[:2] == ["Packages", codename])
    signed = f"[signed-by={KEYRING}]" if KEYRING.exists() else ""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {signed} {site} {suite} main\n")
    apt = [f"-oDir::Etc::sourcelist={folder}/sources.list", "-oDir::Etc::sourceparts=-"]
    apt += [f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache", "-oAPT::Sandbox::User=root"]
    subprocess.run(["apt-get", *apt, "-qq", "update"], check=True)
    names = [line.split()[0] for line in _said("apt-cache", *apt, "search", "--names-only", PACKAGES).splitlines()]
    newest = max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    subprocess.run(["apt-get", *apt, "-qq", "download", newest], cwd=folder, check=True)
    (archive,) = folder.glob("*.deb")
    return archive


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _initial(folder: Path, command: str, suite: str) -> Path:
    """The file system that the kernel starts with: what mounts `/`, and runs the command there."""
    root = folder / "initial"
    (root / "bin").mkdir(parents=True)
    (root / "modules").mkdir()
    shutil.copy(shutil.which("busybox") or "/bin/busybox", root / "bin/busybox")
    version = next((kernel(suite) / "lib/modules").iterdir()).name
    names: list[str] = []
    for module in MODULES:
        for line in _said("modprobe", "--show-depends", "-d", str(kernel(suite)), "-S", version, module).splitlines():
            kind, _, path = line.partition(" ")
            if kind == "insmod" and (name := Path(path.strip()).name) not in names:
                names.append(name)
                shutil.copy(path.strip(), root / "modules" / name)
    init = root / "init"
    init.write_text(INIT.format(modules=" ".join(names), command=shlex.quote(command), done=DONE))
    init.chmod(0o755)
    image = folder / "initial.cpio"
    with image.open("wb") as out:
        listed = "".join(f"{path.relative_to(root)}\n" for path in [root, *sorted(root.rglob("*"))])
        packed = ["busybox", "cpio", "-o", "-H", "newc"]
        subprocess.run(packed, cwd=root, input=listed.encode(), stdout=out, stderr=subprocess.DEVNULL, check=True)
    return image


def starts(suite: str) -> bool:
    """Whether this machine's QEMU can start the suite's kernel."""
    version = re.search(r"version (\d+)", _said("qemu-system-x86_64", "--version"))
    return suite == "bookworm" or (version is not None and int(version[1]) >= 10)


def run(command: str, suite: str) -> int:
    """Run a shell's command in it, with its output on ours. Returns the exit code; 255 where there is none."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        image = _initial(folder, f"cd {shlex.quote(os.getcwd())} && {command}", suite)
        server = next(path for path in VIRTIOFSD if Path(path).exists())
        with subprocess.Popen(
            [server, f"--socket-path={folder}/files", "-o", "source=/,sandbox=chroot,cache=always"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as files:
            try:
                (boot,) = (kernel(suite) / "boot").glob("vmlinuz-*")
                arguments = [
                    *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
                    *("-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MB)),
                    *("-object", f"memory-backend-memfd,id=memory,size={MEMORY_MB}M,share=on"),
                    *("-numa", "node,memdev=memory", "-chardev", f"socket,id=files,path={folder}/files"),
                    *("-device", "vhost-user-fs-pci,chardev=files,tag=host", "-serial", "stdio"),
                    *("-kernel", str(boot), "-initrd", str(image), "-append", "console=ttyS0 loglevel=1 panic=-1"),
                ]
                code = 255
                with subprocess.Popen(
                    arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
                ) as machine:
                    assert machine.stdout is not None
                    for line in machine.stdout:
                        if DONE in line:
                            code = int(line.rpartition(DONE)[2])
                        else:
                            print(line, end="", flush=True)
                return code
            finally:
                files.terminate()


if __name__ == "__main__":
    sys.exit(run(shlex.join(sys.argv[2:]), sys.argv[1]))
