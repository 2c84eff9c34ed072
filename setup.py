"""What pyproject.toml cannot say: the data path (modules of quota and proxy) is compiled where that is possible.

KQUOTA_PURE decides here as it does when kquota runs (quota/compiled.py). Unset or empty: the data path is compiled
where a C compiler and Python's headers are, and elsewhere left as it is with a line that says why. "0": it has to be
compiled, and the build fails where it cannot. Anything else: it is left as it is.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

try:
    from Cython.Build import cythonize
    from Cython.Compiler import Options
except ImportError:  # only without build isolation, which brings it
    cythonize = None

PURE = os.environ.get("KQUOTA_PURE", "")
REQUIRED = PURE == "0"
SANITIZED = os.environ.get("KQUOTA_SANITIZE", "") not in ("", "0")
"""For tests only (tests/sanitize.py): AddressSanitizer and UBSan watch the compiled code."""
if SANITIZED:
    COMPILE = ["-O0", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-U_FORTIFY_SOURCE"]
    LINK = ["-fsanitize=address,undefined"]
else:
    # For any machine of this kind: images move. What peers send is read here, hence the hardening that Debian uses.
    COMPILE = ["-O2", "-g0", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
    # Between two requests other programs push this code out of the caches: fewer lines of code come back sooner.
    COMPILE += ["-fno-plt", "-fno-align-jumps", "-fno-align-loops", "-fno-align-labels"]
    LINK = ["-Wl,-z,relro,-z,now"]


# What has a .pxd next to it is compiled: from the very .py that people read, or from a .pyx for what only C can do (the
# .py next to that one does the same without). But for these, whose functions are part of those that call them.
INCLUDED = ("proxy/core/wire/integers.pxd", "proxy/net/io/ticks.pxd")
OPENSSL = "proxy/net/tls/_openssl.pxd"
"""Where its headers are; elsewhere Python's `ssl` does TLS."""
HAS_OPENSSL = b"#include <openssl/ssl.h>\n#if OPENSSL_VERSION_MAJOR < 3\n#error\n#endif\n"
TYPES = sorted([*glob.glob("quota/*.pxd"), *glob.glob("proxy/*/*/*.pxd")])
# Python's rules stay: bounds are checked, integers are divided as Python does, annotations do not change what a name
# may be.
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "boundscheck": True,
    "cdivision": False,
    "wraparound": False,
}


def extension(types: str) -> Extension:
    """The module next to a .pxd."""
    module = types.removesuffix(".pxd")
    source = f"{module}.pyx" if os.path.exists(f"{module}.pyx") else f"{module}.py"
    name = module.replace("/", ".")
    libraries = ["ssl", "crypto"] if types == OPENSSL else []
    return Extension(
        name, [source], depends=TYPES, libraries=libraries, extra_compile_args=COMPILE, extra_link_args=LINK
    )


EXTENSIONS = [extension(types) for types in TYPES if types not in INCLUDED]
SUMS = "quota/_compiled/SHA256SUMS"
SOURCES = [*TYPES, *(one for each in EXTENSIONS for one in each.sources)]


class BuildDataPath(build_ext):
    """Compiles everything or nothing, and says why not. A mistake in its source is an error everywhere."""

    def initialize_options(self) -> None:
        """As many modules at a time as this process may use cores."""
        super().initialize_options()
        self.parallel = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None

    def get_ext_fullpath(self, ext_name: str) -> str:
        """In a place of their own. Beside their sources they would hide them: quota/compiled.py."""
        folder, name = os.path.split(super().get_ext_fullpath(ext_name))
        return os.path.join(folder, "_compiled", name)

    def run(self) -> None:
        """Compile. The sums of the sources come last: without them nothing of it is used."""
        in_place, self.inplace = self.inplace, 0
        self.remove(in_place)
        sums = self.sums()  # before: a source that is edited meanwhile was not compiled as it is then
        try:
            super().run()
        except (CCompilerError, PlatformError) as error:
            self.remove(in_place)
            if REQUIRED:
                raise
            print(f"kquota: the data path is not compiled, it stays pure Python: {error}", file=sys.stderr)
        else:
            self.write_sums(sums)
            if in_place:
                for built in self.get_outputs():
                    here = os.path.relpath(built, self.build_lib)
                    os.makedirs(os.path.dirname(here), exist_ok=True)
                    shutil.copyfile(built, here)
        finally:
            self.inplace = in_place

    def build_extensions(self) -> None:
        """Compile all, unless what that takes is missing.

        Cython one module after another, as it is not made for threads; its C code goes to the build's directory, not
        next to the sources. Then the C compiler, several at a time.
        """
        if cythonize is None:
            raise PlatformError("Cython is not installed")
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise PlatformError(f"no C compiler ({compiler})")
        self.leave_out_openssl()
        Options.warning_errors = REQUIRED  # a negative index, for one, is undefined in compiled code
        in_c = cythonize(
            self.extensions,
            build_dir=self.build_temp,
            force=self.force,
            quiet=self.verbose == 0,
            compiler_directives=DIRECTIVES,
        )
        sources = {made.name: made.sources for made in in_c}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()

    def leave_out_openssl(self) -> None:
        """Where the headers of OpenSSL 3 are not, compile what does not need them."""
        others = [one for one in self.extensions if not one.libraries]
        if others == self.extensions:
            return
        command = [*self.compiler.compiler_so, "-E", "-x", "c", "-o", os.devnull, "-"]
        found = subprocess.run(command, input=HAS_OPENSSL, stderr=subprocess.DEVNULL, check=False)
        if found.returncode == 0:
            return
        said = "the headers of OpenSSL 3 are not found (Debian: libssl-dev)"
        if REQUIRED:
            raise PlatformError(said)
        print(f"kquota: TLS is not compiled, Python's ssl does it: {said}", file=sys.stderr)
        self.extensions = others

    def remove(self, in_place: int) -> None:
        """What was compiled from an earlier source must not be taken for this one."""
        for root in (self.build_lib, *(["."] if in_place else [])):
            for pattern in ("quota/_compiled/*", "proxy/*/*/_compiled/*"):
                for stale in glob.glob(os.path.join(root, pattern)):
                    os.remove(stale)

    def sums(self) -> str:
        """SHA-256 of all that is compiled, as `sha256sum` writes them."""
        lines = []
        for source in sorted(SOURCES):
            with open(source, "rb") as read:
                lines.append(f"{hashlib.sha256(read.read()).hexdigest()}  {source}\n")
        return "".join(lines)

    def write_sums(self, sums: str) -> None:
        """Where `quota.compiled` looks for them."""
        path = os.path.join(self.build_lib, SUMS)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as out:
            out.write(sums)

    def get_outputs(self) -> list[str]:
        """For installers."""
        return [*super().get_outputs(), os.path.join(self.build_lib, SUMS)]


if PURE not in ("", "0"):
    print("kquota: the data path is not compiled, it stays pure Python: KQUOTA_PURE is set", file=sys.stderr)
    setup()
else:
    setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": BuildDataPath})
