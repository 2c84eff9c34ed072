"""Write-only side exits of the data path: numbers for metrics, and log lines that no flood can multiply."""

from quota.compiled import activate

activate(__path__, __name__)
