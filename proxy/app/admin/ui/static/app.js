// The page on kquota's admin port. Names are chosen by clients: they only ever become text nodes.
"use strict";
const $ = (id) => document.getElementById(id);
const PERIOD_MS = { look: 2000, history: 5000 };
const state = { groups: [], total: 0, history: null, chosen: null, order: [], ordered: 0, many: false };
const KEEP_ORDER_MS = 10000, ANSWER_TIMEOUT_MS = 8000, THROTTLED_SHOWN = 20;

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}
const short = (value) => String(Number(value.toPrecision(3)));
// What is measured always has three digits, so that a number which changes does not change its width.
const steady = (value) => value === 0 ? "0" : Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 9.995 ? 1 : 2);
function scaled(value, digits) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let index = 0;
  while (Math.abs(value) >= 999.5 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${digits(value)} ${units[index]}`;
}
const bytes = (value) => scaled(value, short);
const span = (ms) => ms < 1000 ? `${Math.round(ms)} ms` : ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
const isBytes = (kind) => kind === "produce" || kind === "fetch";
const limit = (kind, value) => isBytes(kind) ? `${bytes(value)}/s` : kind === "request" ? `${short(value)} %` : `${value}/s`;
const now = (kind, value) => kind === "mutation" ? `${value.toFixed(1)} left` : isBytes(kind) ? `${scaled(value, steady)}/s` : `${steady(value)} %`;
const clock = (iso) => { const made = element("time", `${iso.slice(11, 19)}Z`); made.dateTime = made.title = iso; return made; };
// What cannot be seen, or turns the direction of writing, is shown as its code: names must not pass for other names.
const visible = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
const name = (text) => text === null ? "(all)" : text === "" ? '""' : visible(text);
const key = (one) => JSON.stringify([one.kind, one.user, one.client_id, one.pod]);
const title = (one) => `${one.kind}: ${name(one.user)} / ${name(one.client_id)}`;

async function ask(path) {
  const answer = await fetch(`../${path}`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) });
  if (!answer.ok) throw new Error(`${path}: HTTP ${answer.status} ${await answer.text()}`.slice(0, 300));
  return answer;
}
// Only what has changed is replaced: whatever is selected, pointed at or has the keyboard's focus stays as it is.
function replace(old, made) {
  made.forEach((one, at) => {
    if (at >= old.children.length) old.append(one);
    else if (!old.children[at].isEqualNode(one)) {
      if (one.tagName === "TR" && old.children[at].dataset.key === one.dataset.key) replace(old.children[at], [...one.children]);
      else old.children[at].replaceWith(one);
    }
  });
  while (old.children.length > made.length) old.lastElementChild.remove();
}
// A row of another program or version hides no others.
const every = (all, make, tag = "tr") => all.map((one) => {
  try { return make(one); } catch (error) {
    const made = element(tag);
    made.append(element(tag === "tr" ? "td" : "span", `unexpected row of ${one.pod ?? "this sidecar"}: ${error.message}`, "bad"));
    return made;
  }
});
const fill = (table, all, make) => replace($(table).tBodies[0], every(all, make));
function cells(row, values) {
  for (const value of values) (value?.tagName === "TD" ? row : row.insertCell()).append(value);
  return row;
}
function named(text) { const made = element("td", name(text), "name"); made.title = text === null ? "shared by all" : name(text); return made; }
const number = (text) => element("td", text, "n");

const fleet = (one) => one ? `, ${(100 * one.share).toFixed(1)} % of the fleet's ${one.why === "last" || one.why === "alone" ? "(no contact)" : ""}`.trimEnd() : "";

// Throttles start and end many times a second: what is shown is their start and their share of the last minute.
const memory = (one) => one ? `since ${one.since.slice(11, 16)}Z${one.earlier ? " or before" : ""}, ${Math.round(100 * one.last_minute)} % of the last minute` : null;
const PACED = "even rate after a violation, possibly below the limit";
// [what it does with clients, how long, class].
function standing(one) {
  if (one.mode === "shadow") return ["shadow", "", "trial"];
  const waiting = one.waiting > 0 ? `${one.waiting} waiting` : "", rest = [memory(one.delayed), waiting].filter(Boolean).join(", ");
  if (one.owed_ms > 0) return [`owes ${span(one.owed_ms)}`, rest, "bad"];
  if (one.delayed) return ["throttled", rest, "bad"];
  if (one.throttled_for_ms > 0) return [`throttled ${span(one.throttled_for_ms)}`, waiting, "bad"];
  if (waiting) return [waiting, "", "bad"];
  return one.utilisation >= 0.9 ? ["near", "", "near"] : ["ok", "", "good"];
}
// The sidecar answers by use, which changes all the time; here the order changes now and then.
function inOrder(groups) {
  const keys = groups.map(key), known = new Set(state.order);
  if (performance.now() - state.ordered > KEEP_ORDER_MS || keys.length !== known.size || keys.some((one) => !known.has(one))) {
    state.order = keys;
    state.ordered = performance.now();
  }
  const place = new Map(state.order.map((one, at) => [one, at]));
  return [...groups].sort((a, b) => place.get(key(a)) - place.get(key(b)));
}
function client(one) {
  const made = element("td", undefined, "name"), pick = element("button", `${name(one.user)} / ${name(one.client_id)}`, "pick");
  pick.type = "button";
  pick.title = `${title(one)}: explain it`;
  made.append(pick, element("small", one.kind, "quiet"));
  return made;
}
const link = (sidecar) => { const made = element("a", sidecar.pod); made.href = `${sidecar.url}/ui/`; made.target = "_blank"; made.rel = "noopener"; return made; };
const pod = (one) => state.many ? [link(one)] : [];
function showGroups() {
  const wanted = $("filter").value.toLowerCase();
  const limited = inOrder(state.groups.filter((one) => one.limit !== null));
  const kept = limited.filter((one) => `${one.kind} ${one.user ?? ""} ${one.client_id ?? ""} ${one.pod ?? ""}`.toLowerCase().includes(wanted));
  fill("groups", kept, (one) => {
    const row = element("tr"), use = element("td", undefined, "use"), meter = element("meter");
    row.dataset.key = key(one);
    meter.max = 1; meter.low = 0.9; meter.high = 0.999; meter.optimum = 0; meter.value = Math.min(one.utilisation, 1).toFixed(2);
    meter.setAttribute("aria-label", `used share of the limit of ${title(one)}`);
    use.append(meter, element("span", ` ${Math.round(one.utilisation * 100)} %`));
    const [text, rest, look] = standing(one);
    const what = element("td", text, look);
    if (one.paced) { const paced = element("span", ", paced"); paced.title = PACED; what.append(paced); }
    if (rest) what.append(element("small", rest));
    const limited = number(limit(one.kind, one.limit));
    if (one.candidate && one.candidate.limit !== null)
      limited.append(element("small", `candidate ${limit(one.kind, one.candidate.limit)}: ${Math.round(one.candidate.utilisation * 100)} %, would delay ${one.candidate.throttled}`, "trial"));
    if (one.mode === "shadow" && one.shadow) limited.append(element("small", `would delay ${one.shadow.throttled}`, "trial"));
    return cells(row, [client(one), number(now(one.kind, one.observed)), use, what, limited, (one.level ?? "-") + fleet(one.fleet), ...pod(one)]);
  });
  $("shown").textContent = `${kept.length} of ${state.total} counters`;
}
$("groups").addEventListener("click", (event) => {
  const row = event.target.closest("tbody tr");
  if (row === null) return;
  const [kind, user, clientId] = JSON.parse(row.dataset.key);
  if (state.many) {  // each sidecar explains on its own page
    const { url } = state.groups.find((one) => key(one) === row.dataset.key);
    if (event.target.closest("a") === null) open(`${url}/ui/#${parameters({ counter: key({ kind, user, client_id: clientId }), user, client_id: clientId })}`, "_blank", "noopener");
    return;
  }
  $("counter").value = state.chosen = row.dataset.key;
  draw();
  explain(user ?? "", clientId ?? "");
});
// The address keeps the selection, so that it can be shared.
const parameters = (chosen) => new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
function mark() {
  const form = new FormData($("explain")), range = $("range").value;
  const kept = parameters({ filter: $("filter").value, range: range === "15" ? "" : range, counter: state.chosen, user: form.get("user"), client_id: $("explanation").hidden ? "" : form.get("client_id") });
  window.history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname);
}
// Words for reasons whose name is ambiguous.
const because = { paced: "paced to avoid a long pause", held: "waited before it was forwarded: the group was in debt", owed: "rest of an earlier delay" };
function line(now) {
  if (!now.waiting) return "";
  const first = now.next_ms > 0 ? `in ${span(now.next_ms)}` : "now", owes = now.debt_ms > 0 ? `; the group owes ${span(now.debt_ms)}` : "";
  return `; ${now.waiting} connection${now.waiting === 1 ? " waits" : "s wait"}, the next passes ${first}${owes}`;
}
function showHeader(answer) {
  const { sidecar, sidecars, connections, quotas, throttled } = answer, { muted = 0, waiting = 0 } = connections.states;
  const about = sidecars ? [answer.title] : [[sidecar.namespace, sidecar.pod].filter(Boolean).join("/"), sidecar.cluster_id, sidecar.mode, sidecar.version, sidecar.config_loaded && `configuration of ${sidecar.config_loaded.slice(0, 16).replace("T", " ")} UTC`];
  const reasons = sidecars ? sidecars.filter((one) => one.error || one.not_ready.length).map((one) => one.pod) : answer.not_ready;
  $("who").textContent = about.filter(Boolean).join(" · ");
  $("status").className = reasons.length ? "bad" : "";
  $("status").textContent = `${reasons.length ? `not ready: ${reasons.join("; ")}` : "ready"} · ${connections.total} connections, ${muted} muted${waiting ? `, ${waiting} waiting` : ""} · ${throttled.total} of ${quotas.total} counters throttled`;
  const at = element("time", `${answer.at.slice(0, 19).replace("T", " ")} UTC`);
  at.dateTime = answer.at;
  $("at").replaceChildren(at);
}
function showThrottled(answer) {
  const shown = answer.throttled.slice(0, THROTTLED_SHOWN), more = answer.total - shown.length;
  $("none-held").hidden = shown.length > 0;
  $("held").hidden = shown.length === 0;
  replace($("held"), every(shown, (one) => {
    const item = element("li"), left = span(Math.max(one.now.muted_ms, one.now.wait_ms));
    const where = one.set_in ? `, set ${one.set_in}` : "", who = one.pod ? ` in ${one.pod}` : "";
    item.append(element("strong", title(one) + who), element("span", ` ${memory(one.now.delayed) ?? `${left} left`} `, "bad"),
      element("span", `${now(one.kind, one.observed)} of ${limit(one.kind, one.limit)}${one.now.paced && one.now.share < 0.9 ? ` (paced: ${PACED})` : ""}; ${one.setting} of ${one.level}${where}${fleet(one.now.fleet)}${line(one.now)}`, "quiet"));
    return item;
  }, "li").concat(more > 0 ? element("li", `and ${more} more`, "quiet") : []));
  fill("decisions", answer.decisions, (one) => cells(element("tr"), [clock(one.at), named(one.user), named(one.client_id),
    one.api ?? "-", one.kind, number(span(one.delay_ms)), because[one.why] ?? one.why, ...pod(one)]));
}
function held(one) {
  if (one.waiting_for !== null) return `waits ${span(one.waited_ms)} (${one.waiting_for})`;
  return one.muted_for_ms > 0 ? `muted ${span(one.muted_for_ms)}` : "-";
}
function showConnections(answer) {
  $("connections-shown").textContent = `${answer.shown} of ${answer.total}, muted and waiting first`;
  fill("connections", answer.connections, (one) => cells(element("tr"), [named(one.client_ids.join(", ")), number(held(one)),
    number(String(one.in_flight)), named(one.user), one.peer, one.broker, visible(one.software ?? "-"),
    number(scaled(one.client_bytes, steady)), number(scaled(one.broker_bytes, steady)), number(span(one.idle_s * 1000)), ...pod(one)]));
}
function showLibraries(answer) {
  $("libraries-shown").textContent = answer.total ? `${answer.shown} of ${answer.total}, most ignored time first` : "No mute of 200 ms or more yet.";
  fill("libraries", answer.libraries, (one) => {
    // As in the report compliance: a single one may have been sent before the client had read its throttle time.
    const ignored = one.mute_ms ? one.ignored_ms / one.mute_ms : 0;
    const waits = ignored <= 0.05 ? "yes" : `${ignored > 0.5 ? "no" : "partly"} (ignored ${span(one.ignored_ms)} of ${span(one.mute_ms)})`;
    return cells(element("tr"), [named(one.library), visible(one.version || "-"), element("td", waits, waits === "yes" ? "good" : "bad"),
      number(String(one.mutes)), number(String(one.ignored))]);
  });
}

const charts = {};
// Lines that are hovered show their values below the chart, as `form` writes them.
function chart(id, lines, times, form) {
  const place = $(id), style = getComputedStyle(document.documentElement), of = (what) => style.getPropertyValue(what).trim();
  const width = Math.max(place.clientWidth, 200), data = [times, ...lines.map((one) => one.values)], minutes = Number($("range").value);
  const look = [width, minutes, form, ...lines.map((one) => one.label)].join();
  if (charts[id]?.look === look) { charts[id].setData(data); return; }
  charts[id]?.destroy();
  const axis = { stroke: of("--soft"), grid: { stroke: of("--grid") }, ticks: { stroke: of("--grid") } };
  const time = (form) => (plot, seconds) => seconds.map((one) => new Date(one * 1000).toISOString().slice(11, form));
  charts[id] = new uPlot({
    width, height: 180, cursor: { y: false, drag: { x: false } },
    // All of the range, so that neither the scale nor its times move about while it fills.
    scales: { x: { range: () => { const here = Date.now() / 1000; return [here - 60 * minutes, here]; } },
      y: { range: (plot, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
    axes: [{ ...axis, space: 60, incrs: [15, 30, 60, 120, 300, 600, 900], values: time(minutes > 1 ? 16 : 19) }, { ...axis, size: 72, values: (plot, all) => all.map(form) }],
    series: [{ label: "UTC", value: (plot, one) => one === null ? "--" : `${time(19)(plot, [one])[0]}Z` },
      ...lines.map(({ label, colour, dash }) => ({ label, dash, stroke: of(colour), width: 2, points: { show: false }, value: (plot, one) => one === null ? "--" : form(one) }))],
  }, data, place);
  charts[id].look = look;
}
const plain = (value) => short(value), forms = { bytes: (value) => `${scaled(value, short)}/s`, percent: (value) => `${short(value)} %` };
function draw() {
  const history = state.history;
  if (!history) return;
  const here = Date.now() / 1000, times = history.age_s.map((age) => here - age);
  const one = history.counters.find((each) => key(each) === state.chosen) ?? history.counters[0];
  const blank = times.map(() => null);
  const last = (values) => values?.findLast((each) => each !== null) ?? null;
  const say = (id, text) => { $(id).setAttribute("role", "img"); $(id).setAttribute("aria-label", text); };
  // Tokens of mutations are no rate: their used share is drawn.
  const share = !one || one.kind === "mutation", form = one && isBytes(one.kind) ? forms.bytes : forms.percent;
  const limits = (one?.limit ?? blank).map((each) => each !== null && share ? 100 : each);
  const lines = [{ label: "rate", colour: "--bar", values: one ? one.use.map((each, at) => each === null || limits[at] === null ? null : each * limits[at]) : blank },
    { label: "limit", colour: "--bad", dash: [6, 4], values: limits }];
  const candidate = one && !share ? state.groups.find((each) => key(each) === key(one))?.candidate?.limit : null;
  if (candidate) lines.push({ label: "candidate", colour: "--trial", dash: [2, 3], values: limits.map(() => candidate) });
  say("chart-use", one && last(lines[0].values) !== null ? `${title(one)}: ${form(last(lines[0].values))} of ${form(last(limits))}` : "no traffic yet");
  say("chart-held", one && last(one.held) !== null ? `${title(one)}: held ${steady(last(one.held))} seconds per second now` : "no delay yet");
  say("chart-connections", ["open", "muted", "waiting"].map((each) => `${last(history.connections[each]) ?? 0} ${each}`).join(", "));
  chart("chart-use", lines, times, form);
  chart("chart-held", [{ label: "held", colour: "--bad", values: one ? one.held : blank }], times, plain);
  chart("chart-connections", [["open", "--bar"], ["muted", "--bad"], ["waiting", "--near"]].map(([label, colour]) => ({ label, colour, values: history.connections[label] })), times, plain);
}
function showHistory(answer) {
  state.history = answer;
  const select = $("counter");
  const peak = (one) => Math.max(0, ...one.use.map((each) => each ?? 0));
  const ordered = [...answer.counters].sort((a, b) => peak(b) - peak(a));
  if (!ordered.some((one) => key(one) === state.chosen)) state.chosen = ordered.length ? key(ordered[0]) : null;
  replace(select, ordered.map((one) => { const option = element("option", title(one)); option.value = key(one); return option; }));
  if (state.chosen !== null) select.value = state.chosen;
  draw();
}

// Many sidecars at once: `kquota ui`.
function showSidecars(found) {
  state.many = true;
  document.body.classList.add("many");
  fill("sidecars", found, (one) => {
    const [text, look] = one.error ? [one.error, "bad"] : one.not_ready.length ? [`not ready: ${one.not_ready.join("; ")}`, "bad"] : ["ready", "good"];
    return cells(element("tr"), [link(one), element("td", text, look), ...["throttled", "connections", "muted"].map((what) => number(String(one[what] ?? "-"))), one.version ?? "-", one.config_loaded ? clock(one.config_loaded) : "-"]);
  });
}
async function look() {
  try {
    const answer = await (await ask("snapshot?limit=200")).json();
    showHeader(answer);
    if (answer.sidecars) showSidecars(answer.sidecars);
    state.groups = answer.quotas.groups;
    state.total = answer.quotas.total;
    showGroups();
    showThrottled(answer.throttled);
    showConnections(answer.connections);
    showLibraries(answer.libraries);
    document.body.classList.remove("gone");
  } catch (error) {
    document.body.classList.add("gone");
    $("status").className = "bad";
    $("status").textContent = `sidecar unreachable (${error.message}), retrying`;
  }
  setTimeout(look, PERIOD_MS.look);
}
async function remember() {
  try { showHistory(await (await ask("history")).json()); } catch (error) { /* the status line says so */ }
  setTimeout(remember, PERIOD_MS.history);
}
$("filter").addEventListener("input", () => { showGroups(); mark(); });
for (const id of ["counter", "range"]) $(id).addEventListener("change", () => { state.chosen = $("counter").value; draw(); mark(); });
// The sentences are the sidecar's (`kquota explain` prints the same); this places them.
const lines = (texts, name) => { const made = element("ul", undefined, name); made.append(...texts.map((one) => element("li", one.trim()))); return made; };
function table(label, heads, rows) {
  const made = element("table"), head = made.createTHead().insertRow(), place = element("div", undefined, "scroll");
  for (const one of heads) { const th = element("th", one); th.scope = "col"; head.append(th); }
  made.createTBody().append(...rows);
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", label);
  place.append(made);
  return place;
}
function explanation(panel) {
  const held = panel.verdict.some((one) => /^(THROTTLED|CONNECTIONS)/.test(one));
  const [levelHeads, ...levelRows] = panel.levels, levels = levelRows.map(([level, ...limits]) => {
    const row = element("tr"), th = element("th", level);
    th.scope = "row";
    row.append(th);
    return cells(row, limits.map(([value, mark]) => {
      const made = element("td", value, mark ? "wins" : "");
      if (mark) made.append(" ", element("mark", mark));
      return made;
    }));
  });
  const words = element("dl");
  for (const [kind, ...sentences] of panel.quotas) words.append(element("dt", kind), ...sentences.map((one) => element("dd", one)));
  const parts = [element("h3", panel.title), lines(panel.identity, "quiet"), lines(panel.verdict, held ? "verdict bad" : "verdict good"),
    element("h4", "Levels, from most to least specific"), table("Table of levels", levelHeads, levels), element("h4", "Quotas"), words,
    element("h4", "Connections"), lines(panel.connections)];
  if (panel.decisions.length) {
    const [heads, ...rows] = panel.decisions;
    parts.push(element("h4", "Last throttles, newest first"), table("Table of the last throttles of this client", heads, rows.map((row) => cells(element("tr"), row))));
  }
  return parts;
}
const quoted = (text) => `'${visible(text).replaceAll("'", "'\\''")}'`;
function commands(user, clientId) {
  const labels = [["user", user], ["client_id", clientId]].filter(([, value]) => value).map(([label, value]) => `${label}=${JSON.stringify(visible(value))}`);
  const options = (user ? ` --user ${quoted(user)}` : "") + (clientId ? ` --client-id ${quoted(clientId)}` : "");
  return [element("h4", "The same on the command line, and in Prometheus"), element("code", `kquota explain --admin ${location.origin}${options}`),
    element("code", `rate(kquota_throttle_seconds_total{${labels.join(", ")}}[5m])`)];
}
async function explain(user, clientId) {
  const form = $("explain"), shown = $("explanation"), query = new URLSearchParams({ format: "panel" });
  form.elements.user.value = user;
  form.elements.client_id.value = clientId;
  if (user) query.set("user", user);
  if (clientId) query.set("client_id", clientId);
  try {
    const answer = await ask(`explain?${query}`);
    shown.replaceChildren(...explanation(await answer.json()), ...commands(user, clientId));
  } catch (error) { shown.replaceChildren(element("p", error.message, "bad")); }
  shown.hidden = false;
  mark();
}
$("explain").addEventListener("submit", (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  explain(form.get("user"), form.get("client_id"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const id of Object.keys(charts)) { charts[id].destroy(); delete charts[id]; } draw(); });
addEventListener("resize", draw);
const given = new URLSearchParams(location.hash.slice(1));
$("filter").value = given.get("filter") ?? "";
if (["1", "5"].includes(given.get("range"))) $("range").value = given.get("range");
state.chosen = given.get("counter");
if (given.get("user") || given.get("client_id")) explain(given.get("user") ?? "", given.get("client_id") ?? "");
look().then(() => { if (!state.many) remember(); });
