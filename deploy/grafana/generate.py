"""Writes the Grafana dashboards: `python -m deploy.grafana.generate [--check]`.

Three pages: the fleet (is everything well, who is throttled), one group of clients (its limit and its use), one pod
(the sidecar itself). Metrics are those of docs/metrics.md, recorded series those of deploy/prometheus. Needs
grafana-foundation-sdk, which the sidecar does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos, VariableSort

FOLDER: Final = Path(__file__).parent
SOURCE: Final = DataSourceRef("prometheus", "${datasource}")
COLUMNS: Final = 24
CHOICE: Final = 'namespace=~"$namespace", pod=~"$pod"'
"""Labels of the selected pods; a scrape without these labels has them empty, which "All" includes."""
GROUP: Final = f'{CHOICE}, user=~"$user", client_id=~"$client_id"'


@dataclass(frozen=True, slots=True)
class Show:
    """One panel: the question it answers, its unit, its queries (legend -> PromQL)."""

    title: str
    what: str
    unit: str
    queries: dict[str, str]
    kind: str = "lines"
    """lines or stat"""
    width: int = 12
    height: int = 8


FLEET: Final = [
    Show(
        "Sidecars ready",
        "Share of the sidecars that say they are ready. Below 1: see the runbook, KquotaNotReady.",
        "percentunit",
        {"ready": f"avg(kquota_ready{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Connections",
        "Client connections open now.",
        "short",
        {"open": f"sum(kquota_connections_open{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Muted or waiting",
        "Of these, not being read now: after a throttle, or because the next request waits for what its group owes.",
        "short",
        {"muted": f"sum(kquota_connections_muted{{{CHOICE}}}) + sum(kquota_connections_waiting{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Clients throttled",
        "Clients that were held for more than 1 % of the last five minutes.",
        "short",
        {"clients": f"count(sum by (user, client_id) (kquota:throttle:ratio_rate5m{{{CHOICE}}}) > 0.01) or vector(0)"},
        "stat",
        4,
        4,
    ),
    Show(
        "Bytes",
        "Produce requests and fetch responses through all sidecars.",
        "Bps",
        {"bytes": f"sum(kquota:bytes:rate5m{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Configurations refused",
        "Sidecars whose file on disk was refused; the last good one is in force.",
        "short",
        {"refused": f"sum(1 - kquota_config_last_reload_successful{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Throttled clients, and why",
        "Share of time that a client was held, by the quota that caused it; two connections can make 200 %.",
        "percentunit",
        {
            "{{user}} / {{client_id}} ({{cause}})": "topk(10, sum by (user, client_id, cause) "
            f"(kquota:throttle:ratio_rate5m{{{CHOICE}}}) > 0)"
        },
        width=12,
    ),
    Show(
        "Quotas nearest to their limit",
        "Used share of a quota in its window, the highest ten; above 100 %: over it.",
        "percentunit",
        {
            "{{kind}}: {{user}} / {{client_id}}": "topk(10, max by (kind, user, client_id) "
            f'(kquota_quota_utilisation_ratio{{{CHOICE}, mode="enforce"}}))'
        },
        width=12,
    ),
    Show(
        "Bytes by client",
        "The ten clients that move most, produce and fetch.",
        "Bps",
        {
            "{{kind}}: {{user}} / {{client_id}}": "topk(10, sum by (kind, user, client_id) "
            f"(kquota:bytes:rate5m{{{CHOICE}}}))"
        },
    ),
    Show(
        "Broker time by client",
        "Threads of a broker that a client keeps busy, as estimated; 1 is one whole thread.",
        "short",
        {
            "{{user}} / {{client_id}}": "topk(10, sum by (user, client_id) "
            f"(rate(kquota_request_seconds_total{{{CHOICE}}}[5m])))"
        },
    ),
    Show(
        "What limits on trial would have done",
        "Share of time that shadow and candidate limits would have held clients up.",
        "percentunit",
        {
            "{{limit}} {{kind}}: {{user}} / {{client_id}}": "topk(10, sum by (kind, user, client_id, limit) "
            f"(rate(kquota_would_throttle_seconds_total{{{CHOICE}}}[5m])))"
        },
    ),
    Show(
        "Brokers that throttle on their own",
        "Share of time that brokers told a client to wait, by quotas of the cluster itself.",
        "percentunit",
        {
            "{{user}} / {{client_id}}": "topk(10, sum by (user, client_id) "
            f"(kquota:broker_throttle:ratio_rate5m{{{CHOICE}}}) > 0)"
        },
    ),
    Show(
        "Client libraries that do not wait",
        "Share of the time that a library was told to wait, and watched, in which its clients went on sending.",
        "percentunit",
        {
            "{{library}} {{version}}": "topk(10, sum by (library, version) "
            f"(rate(kquota_library_ignored_seconds_total{{{CHOICE}}}[5m])) / sum by (library, version) "
            f"(rate(kquota_library_mute_seconds_total{{{CHOICE}}}[5m])))"
        },
        width=24,
    ),
    Show(
        "Limits of the fleet: share by sidecar",
        "The part of a fleet's limit that each sidecar may use; together they are never above 1.",
        "percentunit",
        {"{{pod}} {{instance}} {{user}} / {{client_id}}": f"topk(20, kquota_fleet_share{{{CHOICE}}})"},
    ),
    Show(
        "Sidecars that do not hear the fleet",
        "They use limit / known instances. See the runbook, KquotaFleetLost.",
        "short",
        {"lost": f"sum(kquota_fleet_lost{{{CHOICE}}})", "instances known": f"max(kquota_fleet_instances{{{CHOICE}}})"},
    ),
    Show(
        "Connections closed, by reason",
        "Per second. Reasons are explained in docs/metrics.md.",
        "short",
        {"{{reason}}": f"sum by (reason) (rate(kquota_connections_closed_total{{{CHOICE}}}[5m]))"},
    ),
    Show(
        "Connections refused, by limit",
        "Per second: creation rates and caps on open connections.",
        "short",
        {"{{reason}}": f'sum by (reason) (rate(kquota_connections_refused_total{{{CHOICE}, mode="enforce"}}[5m]))'},
    ),
]

ONE_GROUP: Final = [
    Show(
        "Rate and limit: produce and fetch",
        "What the limit is compared with (the rate in the window), and the limit, per sidecar.",
        "Bps",
        {
            "{{kind}} now {{pod}}": f'kquota_quota_observed{{{GROUP}, kind=~"produce|fetch", mode="enforce"}}',
            "{{kind}} limit": f'max by (kind) (kquota_quota_limit{{{GROUP}, kind=~"produce|fetch", mode="enforce"}})',
        },
    ),
    Show(
        "Use of each quota",
        "Used share in the window; above 100 %: over it.",
        "percentunit",
        {"{{kind}} {{mode}} {{pod}}": f"kquota_quota_utilisation_ratio{{{GROUP}}}"},
    ),
    Show(
        "Held, by cause",
        "Share of time that the client was held; two connections can make 200 %.",
        "percentunit",
        {
            "{{cause}}": f"sum by (cause) (kquota:throttle:ratio_rate5m{{{GROUP}}})",
            "by the brokers themselves": f"sum(kquota:broker_throttle:ratio_rate5m{{{GROUP}}})",
        },
    ),
    Show(
        "Owed",
        "What the group owes beyond the throttles that were told; its next requests wait for it.",
        "s",
        {"{{kind}} {{pod}}": f"kquota_throttle_owed_seconds{{{GROUP}}}"},
    ),
    Show(
        "Held before it was forwarded, by cause",
        "Of the share of time above, what requests waited before they were forwarded; no client was told of it.",
        "percentunit",
        {"{{cause}}": f"sum by (cause) (rate(kquota_held_seconds_total{{{GROUP}}}[5m]))"},
    ),
    Show(
        "Connections that wait",
        "Connections whose next request waits until the group has paid what it owes.",
        "short",
        {"{{kind}} {{pod}}": f"kquota_quota_waiting_connections{{{GROUP}}}"},
    ),
    Show(
        "Bytes",
        "Produce requests and fetch responses.",
        "Bps",
        {"{{kind}}": f"sum by (kind) (kquota:bytes:rate5m{{{GROUP}}})"},
    ),
    Show(
        "Requests delayed",
        "Per second, by the quota that caused it.",
        "reqps",
        {"{{cause}}": f"sum by (cause) (rate(kquota_throttled_requests_total{{{GROUP}}}[5m]))"},
    ),
    Show(
        "Broker time",
        "Threads of a broker that the client keeps busy, as estimated.",
        "short",
        {"threads": f"sum(rate(kquota_request_seconds_total{{{GROUP}}}[5m]))"},
    ),
    Show(
        "Partition mutations",
        "Partitions created and deleted per second, and the tokens left.",
        "short",
        {
            "mutations": f"sum(rate(kquota_mutations_total{{{GROUP}}}[5m]))",
            "tokens {{pod}}": f"kquota_quota_tokens{{{GROUP}}}",
        },
    ),
    Show(
        "Limits on trial",
        "Share of time that shadow and candidate limits would have held the client up.",
        "percentunit",
        {"{{limit}} {{kind}}": f"sum by (limit, kind) (rate(kquota_would_throttle_seconds_total{{{GROUP}}}[5m]))"},
        width=24,
    ),
]

ONE_POD: Final = [
    Show(
        "Ready",
        "1: listeners are bound and the cluster answers.",
        "short",
        {"ready": f"min(kquota_ready{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Version",
        "What runs.",
        "short",
        {"{{version}}": f"count by (version) (kquota_build_info{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Quotas in force",
        "Entries of the configuration.",
        "short",
        {"entries": f"max(kquota_config_quotas{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Clients known",
        "Clients that the sidecar remembers.",
        "short",
        {"clients": f"sum(kquota_clients_known{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Restart required",
        "Sidecars whose file has settings that only a restart applies.",
        "short",
        {"sidecars": f"sum(kquota_config_restart_required{{{CHOICE}}})"},
        "stat",
        4,
        4,
    ),
    Show(
        "Up since",
        "Start of the process.",
        "dateTimeFromNow",
        {"start": f"max(process_start_time_seconds{{{CHOICE}}}) * 1000"},
        "stat",
        4,
        4,
    ),
    Show("CPU", "Cores used by the sidecar.", "short", {"{{pod}}": f"rate(process_cpu_seconds_total{{{CHOICE}}}[5m])"}),
    Show("Memory", "Resident memory.", "bytes", {"{{pod}}": f"process_resident_memory_bytes{{{CHOICE}}}"}),
    Show(
        "Connections",
        "Open, muted (not read after a throttle), waiting (not read because the next request waits for what its "
        "group owes), held (refused, waiting out their delay).",
        "short",
        {
            "open": f"sum(kquota_connections_open{{{CHOICE}}})",
            "muted": f"sum(kquota_connections_muted{{{CHOICE}}})",
            "waiting": f"sum(kquota_connections_waiting{{{CHOICE}}})",
            "held": f"sum(kquota_connections_held{{{CHOICE}}})",
        },
    ),
    Show(
        "File descriptors",
        "Open, and how many there may be.",
        "short",
        {
            "open {{pod}}": f"process_open_fds{{{CHOICE}}}",
            "most {{pod}}": f"process_max_fds{{{CHOICE}}}",
        },
    ),
    Show(
        "Latency of brokers",
        "Request forwarded until its response began; waiting requests left out.",
        "s",
        {
            name: f"histogram_quantile({quantile}, sum by (le) "
            f"(rate(kquota_upstream_latency_seconds_bucket{{{CHOICE}}}[5m])))"
            for name, quantile in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
    ),
    Show(
        "Requests by API",
        "Per second.",
        "reqps",
        {"{{api}}": f"topk(10, sum by (api) (rate(kquota_requests_total{{{CHOICE}}}[5m])))"},
    ),
    Show(
        "Fetches under a quota",
        "Answered empty by the sidecar, and forwarded with a lowered max_bytes, per second.",
        "reqps",
        {
            "answered": f"sum(rate(kquota_fetches_answered_total{{{CHOICE}}}[5m]))",
            "shaped": f"sum(rate(kquota_fetches_shaped_total{{{CHOICE}}}[5m]))",
        },
    ),
    Show(
        "Held before they were forwarded",
        "Share of time that requests waited because their group still owed for earlier ones, by cause.",
        "percentunit",
        {"{{cause}}": f"sum by (cause) (rate(kquota_held_seconds_total{{{CHOICE}}}[5m]))"},
    ),
    Show(
        "Connections to brokers",
        "Made and failed, per second.",
        "short",
        {
            "made": f"sum(rate(kquota_upstream_connects_total{{{CHOICE}}}[5m]))",
            "failed": f"sum(rate(kquota_upstream_connect_failures_total{{{CHOICE}}}[5m]))",
        },
    ),
    Show(
        "Connections closed, by reason",
        "Per second.",
        "short",
        {"{{reason}}": f"sum by (reason) (rate(kquota_connections_closed_total{{{CHOICE}}}[5m]))"},
    ),
    Show(
        "Bytes that were not Kafka's",
        "Connections closed over them, per second, by kind.",
        "short",
        {"{{kind}}": f"sum by (kind) (rate(kquota_parse_errors_total{{{CHOICE}}}[5m]))"},
    ),
]

PAGES: Final[dict[str, tuple[str, list[Show], tuple[str, ...]]]] = {
    "fleet": ("kquota: fleet", FLEET, ()),
    "group": ("kquota: one group of clients", ONE_GROUP, ("user", "client_id")),
    "pod": ("kquota: one pod", ONE_POD, ()),
}
"""File name -> title, panels, further choices (labels of kquota_bytes_total)."""


def page(name: str) -> Any:
    """The dashboard of one file."""
    title, shows, choices = PAGES[name]
    built = (
        builders.Dashboard(title)
        .uid(f"kquota-{name}")
        .tags(["kquota", "kafka"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    known = 'kquota_ready{namespace=~"$namespace"}'
    for label, metric in (
        ("namespace", "kquota_ready"),
        ("pod", known),
        *((one, "kquota_bytes_total") for one in choices),
    ):
        built = built.with_variable(
            builders.QueryVariable(label)
            .label(label.replace("_", "-"))
            .datasource(SOURCE)
            .query(f"label_values({metric}, {label})")
            .include_all(True)
            .all_value(".*")
            .multi(True)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    x = y = 0
    tallest = 0
    for show in shows:
        if x + show.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        built = built.with_panel(_panel(show, x, y))
        x += show.width
        tallest = max(tallest, show.height)
    return built.build()


def _panel(show: Show, x: int, y: int) -> Any:
    sorts: dict[str, Any] = {"lines": timeseries.Panel, "stat": stat.Panel}
    panel = (
        sorts[show.kind]()
        .title(show.title)
        .description(show.what)
        .unit(show.unit)
        .datasource(SOURCE)
        .grid_pos(GridPos(h=show.height, w=show.width, x=x, y=y))
    )
    if show.kind == "lines":
        panel = panel.min(0.0)
    for index, (legend, query) in enumerate(show.queries.items()):
        target = prometheus.Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + index))
        panel = panel.with_target(target.instant() if show.kind == "stat" else target.range())
    return panel


def text_of(name: str) -> str:
    """The JSON of one file."""
    return JSONEncoder(sort_keys=True, indent=1).encode(page(name)) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; with --check compare them, 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    options = parser.parse_args(argv)
    stale = []
    for name in PAGES:
        path, text = FOLDER / f"{name}.json", text_of(name)
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        print(f"not up to date: {', '.join(stale)}; run python -m deploy.grafana.generate", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
