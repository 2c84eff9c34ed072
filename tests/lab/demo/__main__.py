"""What `kquota demo` runs."""

import argparse
import sys
from pathlib import Path

from tests.lab.demo import main

parser = argparse.ArgumentParser(prog="kquota demo")
parser.add_argument("--seconds", type=int, default=30)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--usage", type=Path)
chosen = parser.parse_args()
sys.exit(main(chosen.seconds, chosen.plain, chosen.usage))
