// The page on kquota's admin port. Names are chosen by clients: they only ever become text nodes.
"use strict";
const $ = (id) => document.getElementById(id);
const every = { look: 2000, history: 5000 };
const state = { groups: [], history: null, chosen: null, order: [], ordered: 0, throttled: new Map() };
const KEEP_ORDER_MS = 10000, KEEP_STATE_MS = 6000, MINUTES = 15;

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
const key = (one) => JSON.stringify([one.kind, one.user, one.client_id]);
const title = (one) => `${one.kind}: ${name(one.user)} / ${name(one.client_id)}`;

async function ask(path) {
  const answer = await fetch(`../${path}`, { cache: "no-store" });
  if (!answer.ok && answer.status !== 503) throw new Error(`${path}: HTTP ${answer.status}`);
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
const fill = (table, rows) => replace($(table).tBodies[0], rows);
function cells(row, values) {
  for (const value of values) row.append(value instanceof Node && value.tagName === "TD" ? value : cell(value));
  return row;
}
function cell(value) { const made = element("td"); made.append(value); return made; }
function named(text) { const made = element("td", name(text), "name"); made.title = text === null ? "shared by all" : text; return made; }
const number = (text) => element("td", text, "n");

const fleet = (one) => one ? `, ${(100 * one.share).toFixed(1)} % of the fleet's ${one.why === "last" || one.why === "alone" ? "(no contact)" : ""}`.trimEnd() : "";

function standing(one) {
  if (one.mode === "shadow") return ["shadow", "trial"];
  const waiting = one.waiting > 0 ? [`${one.waiting} waiting`] : [];
  if (one.owed_ms > 0) return [[`owes ${span(one.owed_ms)}`, ...waiting].join(", "), "bad"];
  if (one.throttled_for_ms > 0) return [[`throttled ${span(one.throttled_for_ms)}`, ...waiting].join(", "), "bad"];
  if (one.waiting > 0) return [waiting[0], "bad"];
  return one.utilisation >= 0.9 ? ["near", "near"] : ["ok", "good"];
}
// A client that is throttled many times a second stays so on the page for a moment: its longest delay in that time.
function lasting(one) {
  const at = performance.now(), [text, look] = standing(one), before = state.throttled.get(key(one));
  if (one.throttled_for_ms > 0 && one.mode !== "shadow") {
    const ms = before && at - before.at < KEEP_STATE_MS ? Math.max(before.ms * 0.7, one.throttled_for_ms) : one.throttled_for_ms;
    state.throttled.set(key(one), { at, ms });
    return [text.replace(span(one.throttled_for_ms), span(ms)), look];
  }
  if (before && at - before.at < KEEP_STATE_MS && (text === "ok" || text === "near")) return [`throttled ${span(before.ms)}`, "bad"];
  state.throttled.delete(key(one));
  return [text, look];
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
  pick.title = `${title(one)}: show its last ${MINUTES} minutes`;
  made.append(pick, element("small", one.kind, "quiet"));
  return made;
}
function showGroups(total) {
  const wanted = $("filter").value.toLowerCase();
  const limited = inOrder(state.groups.filter((one) => one.limit !== null));
  const kept = limited.filter((one) => `${one.kind} ${one.user ?? ""} ${one.client_id ?? ""}`.toLowerCase().includes(wanted));
  fill("groups", kept.map((one) => {
    const row = element("tr"), use = element("td", undefined, "use"), meter = element("meter");
    row.dataset.key = key(one);
    meter.max = 1; meter.low = 0.9; meter.high = 0.999; meter.optimum = 0; meter.value = Math.min(one.utilisation, 1).toFixed(2);
    meter.setAttribute("aria-label", `used share of the limit of ${title(one)}`);
    use.append(meter, element("span", ` ${Math.round(one.utilisation * 100)} %`));
    const [text, look] = lasting(one);
    const limited = number(limit(one.kind, one.limit));
    if (one.candidate && one.candidate.limit !== null)
      limited.append(element("small", `candidate ${limit(one.kind, one.candidate.limit)}: ${Math.round(one.candidate.utilisation * 100)} %, would delay ${one.candidate.throttled}`, "trial"));
    if (one.mode === "shadow" && one.shadow) limited.append(element("small", `would delay ${one.shadow.throttled}`, "trial"));
    return cells(row, [client(one), number(now(one.kind, one.observed)), use, element("td", text + (one.paced && look === "good" ? ", paced" : ""), look),
      limited, (one.level ?? "-") + fleet(one.fleet)]);
  }));
  $("shown").textContent = `${kept.length} of ${total} counters`;
}
$("groups").addEventListener("click", (event) => {
  const row = event.target.closest("tbody tr");
  if (row === null) return;
  $("counter").value = state.chosen = row.dataset.key;
  draw();
  const [, user, clientId] = JSON.parse(row.dataset.key);
  explain(user ?? "", clientId ?? "");
});
// The address keeps the selection, so that it can be shared.
function mark() {
  const form = new FormData($("explain"));
  const chosen = { filter: $("filter").value, counter: state.chosen, user: form.get("user"), client_id: $("explanation").hidden ? "" : form.get("client_id") };
  const kept = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
  window.history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname);
}
// Words for reasons whose name is ambiguous.
const because = { paced: "paced to avoid a long pause", held: "waited before it was forwarded: the group was in debt", owed: "rest of an earlier delay" };
function line(now) {
  if (!now.waiting) return "";
  const first = now.next_ms > 0 ? `in ${span(now.next_ms)}` : "now", owes = now.debt_ms > 0 ? `; the group owes ${span(now.debt_ms)}` : "";
  return `; ${now.waiting} connection${now.waiting === 1 ? " waits" : "s wait"}, the next passes ${first}${owes}`;
}
// Throttles start and end many times a second: their start and share of the last minute, from the history.
function memory(one) {
  const history = state.history, series = history?.counters.find((each) => key(each) === key(one));
  const held = series?.held ?? [];
  let first = held.length;
  while (first > 0 && held[first - 1] > 0) first -= 1;
  if (first === held.length) return null;
  const minute = held.filter((_, at) => history.age_s[at] <= 60), at = new Date(Date.now() - history.age_s[first] * 1000);
  return `since ${at.toISOString().slice(11, 16)}Z${first === 0 ? " or before" : ""}, ${Math.round(100 * minute.filter((each) => each > 0).length / minute.length)} % of the last minute`;
}
function showThrottled(answer) {
  const who = answer.sidecar;
  $("who").textContent = [[who.namespace, who.pod].filter(Boolean).join("/"), who.cluster_id, who.mode, who.version, who.config_loaded && `configuration of ${who.config_loaded.slice(0, 16).replace("T", " ")} UTC`].filter(Boolean).join(" · ");
  $("none-held").hidden = answer.throttled.length > 0;
  $("held").hidden = answer.throttled.length === 0;
  replace($("held"), answer.throttled.map((one) => {
    const item = element("li"), left = span(Math.max(one.now.muted_ms, one.now.wait_ms));
    const where = one.set_in ? `, set ${one.set_in}` : "";
    item.append(element("strong", title(one)), element("span", ` ${memory(one) ?? `${left} left`} `, "bad"),
      element("span", `${one.setting} ${limit(one.kind, one.limit)} of ${one.level}${where}${fleet(one.now?.fleet)}; now ${now(one.kind, one.observed)}${line(one.now)}`, "quiet"));
    return item;
  }));
  fill("decisions", answer.decisions.map((one) => cells(element("tr"), [clock(one.at), named(one.user), named(one.client_id),
    one.api ?? "-", one.kind, number(span(one.delay_ms)), because[one.why] ?? one.why])));
  const at = element("time", `${answer.at.slice(0, 19).replace("T", " ")} UTC`);
  at.dateTime = answer.at;
  $("at").replaceChildren(at);
}
function held(one) {
  if (one.waiting_for !== null) return `waits ${span(one.waited_ms)} (${one.waiting_for})`;
  return one.muted_for_ms > 0 ? `muted ${span(one.muted_for_ms)}` : "-";
}
function showConnections(answer) {
  $("connections-shown").textContent = `${answer.shown} of ${answer.total}, muted and waiting first`;
  fill("connections", answer.connections.map((one) => cells(element("tr"), [named(one.client_ids.join(", ")), number(held(one)),
    number(String(one.in_flight)), named(one.user), one.peer, one.broker, one.software ?? "-",
    number(scaled(one.client_bytes, steady)), number(scaled(one.broker_bytes, steady)), number(span(one.idle_s * 1000))])));
}
function showLibraries(answer) {
  $("libraries-shown").textContent = answer.total ? `${answer.shown} of ${answer.total}, most ignored time first` : "No mute of 200 ms or more yet.";
  fill("libraries", answer.libraries.map((one) => {
    // As the report on obedience has it: a single one may have been sent before the client had read what it was told.
    const ignored = one.mute_ms ? one.ignored_ms / one.mute_ms : 0;
    const waits = ignored <= 0.05 ? "yes" : `${ignored > 0.5 ? "no" : "partly"} (ignored ${span(one.ignored_ms)} of ${span(one.mute_ms)})`;
    return cells(element("tr"), [named(one.library), one.version || "-", element("td", waits, waits === "yes" ? "good" : "bad"),
      number(String(one.mutes)), number(String(one.ignored))]);
  }));
}

const charts = {};
function chart(id, labels, colours, data) {
  const place = $(id), style = getComputedStyle(document.documentElement), of = (what) => style.getPropertyValue(what).trim();
  const width = Math.max(place.clientWidth, 200);
  if (charts[id] && charts[id].width === width) { charts[id].setData(data); return; }
  if (charts[id]) charts[id].destroy();
  const axis = { stroke: of("--soft"), grid: { stroke: of("--grid") }, ticks: { stroke: of("--grid") } };
  const time = (form) => (plot, seconds) => seconds.map((one) => new Date(one * 1000).toISOString().slice(11, form));
  charts[id] = new uPlot({
    width, height: 180, legend: { show: labels.length > 1 }, cursor: { y: false },
    // All of the time there is a history of, so that neither the scale nor its times move about while it fills.
    scales: { x: { range: () => { const here = Date.now() / 1000; return [here - 60 * MINUTES, here]; } },
      y: { range: (plot, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
    axes: [{ ...axis, space: 60, incrs: [60, 120, 300, 600, 900], values: time(16) }, { ...axis, size: 56 }],
    series: [{ label: "UTC", value: (plot, one) => one === null ? "--" : `${time(19)(plot, [one])[0]}Z` },
      ...labels.map((label, index) => ({ label, stroke: of(colours[index]), width: 2, points: { show: false } }))],
  }, data, place);
}
function draw() {
  const history = state.history;
  if (!history) return;
  const here = Date.now() / 1000, times = history.age_s.map((age) => here - age);
  const one = history.counters.find((each) => key(each) === state.chosen) ?? history.counters[0];
  const blank = times.map(() => null);
  const last = (values) => { const known = (values ?? []).filter((each) => each !== null); return known.length ? known[known.length - 1] : null; };
  const say = (id, text) => { $(id).setAttribute("role", "img"); $(id).setAttribute("aria-label", text); };
  say("chart-use", one && last(one.use) !== null ? `${title(one)}: ${Math.round(last(one.use) * 100)} % of its limit used now` : "no traffic yet");
  say("chart-held", one && last(one.held) !== null ? `${title(one)}: held ${steady(last(one.held))} seconds per second now` : "no delay yet");
  say("chart-connections", ["open", "muted", "waiting"].map((each) => `${last(history.connections[each]) ?? 0} ${each}`).join(", "));
  chart("chart-use", ["use"], ["--bar"], [times, one ? one.use.map((each) => each === null ? null : each * 100) : blank]);
  chart("chart-held", ["held"], ["--bad"], [times, one ? one.held : blank]);
  const connections = history.connections;
  chart("chart-connections", ["open", "muted", "waiting"], ["--bar", "--bad", "--near"], [times, connections.open, connections.muted, connections.waiting]);
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

async function look() {
  try {
    const [ready, quotas, throttled, connections, libraries] = await Promise.all(
      ["readyz", "quotas?limit=200", "throttled?limit=20", "connections?limit=200", "libraries?limit=20"].map((path) => ask(path).then((answer) => answer.json())));
    state.groups = quotas.groups;
    showGroups(quotas.total);
    showThrottled(throttled);
    showConnections(connections);
    showLibraries(libraries);
    const count = (what) => connections.connections.filter((one) => one.state === what).length;
    const muted = count("muted"), waiting = count("waiting");
    document.body.classList.remove("gone");
    $("status").className = ready.ready ? "" : "bad";
    $("status").textContent = `${ready.ready ? "ready" : `not ready: ${ready.reasons.join("; ")}`} · ${connections.total} connections, ${muted} muted${waiting ? `, ${waiting} waiting` : ""} · ${throttled.total} of ${quotas.total} counters throttled`;
  } catch (error) {
    document.body.classList.add("gone");
    $("status").className = "bad";
    $("status").textContent = `sidecar unreachable (${error.message}), retrying`;
  }
  setTimeout(look, every.look);
}
async function remember() {
  try { showHistory(await (await ask("history")).json()); } catch (error) { /* the status line says so */ }
  setTimeout(remember, every.history);
}
$("filter").addEventListener("input", () => { showGroups(state.groups.length); mark(); });
$("counter").addEventListener("change", () => { state.chosen = $("counter").value; draw(); mark(); });
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
  const levels = panel.levels.map((level) => {
    const row = element("tr"), th = element("th", level.level);
    th.scope = "row";
    row.append(th);
    return cells(row, level.cells.map((one) => {
      const made = element("td", one.limit, one.mark ? "wins" : "");
      if (one.mark) made.append(" ", element("mark", one.mark));
      return made;
    }));
  });
  const words = element("dl");
  panel.kinds.forEach((kind, at) => words.append(element("dt", kind), ...panel.words[at].map((one) => element("dd", one))));
  const parts = [element("h3", panel.title), lines(panel.identity, "quiet"), lines(panel.verdict, held ? "verdict bad" : "verdict good"),
    element("h4", "Levels, from most to least specific"), table("Table of levels", ["level", ...panel.kinds], levels), element("h4", "Quotas"), words,
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
state.chosen = given.get("counter");
if (given.get("user") || given.get("client_id")) explain(given.get("user") ?? "", given.get("client_id") ?? "");
look();
remember();
