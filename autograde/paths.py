"""Where things lie in the repository."""
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS = ROOT / "solutions"
TOOLKIT = SOLUTIONS / "toolkit"
COURSE = ROOT / "course"
MY_WORK = ROOT / "my-work"  # where `make lab` puts copies to work in; not committed
AUTOGRADE = ROOT / "autograde"
SAMPLE_CLASS = AUTOGRADE / "sample_class"
RESULTS = AUTOGRADE / "results"
REQUIREMENTS = AUTOGRADE / "environments"
ENVIRONMENTS = ROOT / ".environments"  # made from these; not committed
