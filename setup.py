"""What pyproject.toml cannot say: the data path's lane (proxy/_lane.pyx) is compiled where that is possible.

KQUOTA_PURE decides here as it does when kquota runs (proxy/lane.py). Unset or empty: the lane is compiled where a C
compiler and Python's headers are, and elsewhere left out with a line that says why. "0": it has to be, and the build
fails where it cannot. Anything else: it is left out.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

try:
    import Cython
except ImportError:  # only without build isolation, which brings it
    Cython = None

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
    LINK = ["-Wl,-z,relro,-z,now"]
LANE = Extension(
    "proxy._lane",
    ["proxy/_lane.pyx"],
    depends=["setup.py"],
    extra_compile_args=COMPILE,
    extra_link_args=LINK,
    optional=not REQUIRED,
)


class BuildLane(build_ext):
    """Compiles the lane, or says why not. A mistake in its source is an error everywhere."""

    def initialize_options(self) -> None:
        """The C code that Cython makes goes to the build's directory, not beside the sources."""
        super().initialize_options()
        self.cython_c_in_temp = True

    def build_extension(self, ext: Extension) -> None:
        """Compile it, unless what that takes is missing and it may be left out."""
        try:
            if Cython is None:
                raise PlatformError("Cython is not installed")
            compiler = self.compiler.compiler_so[0]
            if shutil.which(compiler) is None:
                raise PlatformError(f"no C compiler ({compiler})")
            super().build_extension(ext)
        except (CCompilerError, PlatformError) as error:
            # What was compiled from an earlier source must not be taken for this one.
            for stale in [self.get_ext_fullpath(ext.name), *glob.glob("proxy/_lane.*.so")]:
                if os.path.exists(stale):
                    os.remove(stale)
            if REQUIRED:
                raise
            print(f"kquota: the data path stays pure Python, its lane is not compiled: {error}", file=sys.stderr)


if PURE not in ("", "0"):
    print("kquota: the data path stays pure Python, its lane is not compiled: KQUOTA_PURE is set", file=sys.stderr)
    setup()
else:
    setup(ext_modules=[LANE], cmdclass={"build_ext": BuildLane})
