// The page on kquota's admin port. Names are chosen by clients: they only ever become text nodes.
"use strict";
const $ = (id) => document.getElementById(id);
const every = { look: 2000, history: 5000 };
const state = { groups: [], history: null, chosen: null };

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}
function scaled(value, units) {
  let index = 0;
  while (Math.abs(value) >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${Number(value.toPrecision(3))} ${units[index]}`;
}
const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]);
const span = (ms) => ms < 1000 ? `${Math.round(ms)} ms` : ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
const isBytes = (kind) => kind === "produce" || kind === "fetch";
const limit = (kind, value) => isBytes(kind) ? `${bytes(value)}/s` : kind === "request" ? `${Number(value.toPrecision(3))} %` : `${value}/s`;
const now = (kind, value) => kind === "mutation" ? `${value.toFixed(1)} left` : limit(kind, value);
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
function fill(table, rows) { $(table).tBodies[0].replaceChildren(...rows); }
function cells(row, values) {
  for (const value of values) row.append(value instanceof Node ? value : element("td", value));
  return row;
}
function named(text) { const made = element("td", name(text), "name"); made.title = text === null ? "shared by all" : text; return made; }
const number = (text) => element("td", text, "n");

const fleet = (one) => one ? `, ${(100 * one.share).toFixed(1)} % of the fleet's ${one.why === "last" || one.why === "alone" ? "(not heard)" : ""}`.trimEnd() : "";

function standing(one) {
  if (one.mode === "shadow") return ["shadow", "trial"];
  const waiting = one.waiting > 0 ? [`${one.waiting} waiting`] : [];
  if (one.owed_ms > 0) return [[`owes ${span(one.owed_ms)}`, ...waiting].join(", "), "bad"];
  if (one.throttled_for_ms > 0) return [[`throttled ${span(one.throttled_for_ms)}`, ...waiting].join(", "), "bad"];
  if (one.waiting > 0) return [waiting[0], "bad"];
  return one.utilisation >= 0.9 ? ["near", "near"] : ["ok", "good"];
}
function showGroups(total) {
  const wanted = $("filter").value.toLowerCase();
  const limited = state.groups.filter((one) => one.limit !== null);
  const kept = limited.filter((one) => `${one.kind} ${one.user ?? ""} ${one.client_id ?? ""}`.toLowerCase().includes(wanted));
  fill("groups", kept.map((one) => {
    const row = element("tr", undefined, "pick");
    const use = element("td"), meter = element("meter");
    meter.max = 1; meter.low = 0.9; meter.high = 0.999; meter.optimum = 0; meter.value = Math.min(one.utilisation, 1);
    use.append(meter, ` ${Math.round(one.utilisation * 100)} %`);
    const [text, look] = standing(one);
    row.addEventListener("click", () => { $("counter").value = key(one); state.chosen = key(one); draw(); });
    return cells(row, [named(one.user), named(one.client_id), one.kind, number(limit(one.kind, one.limit)),
      number(now(one.kind, one.observed)), use, element("td", text, look), (one.level ?? "-") + fleet(one.fleet)]);
  }));
  $("shown").textContent = `${kept.length} of ${total} counters`;
}
// In words where the one word could be taken for something else.
const because = { held: "waited before it was forwarded: the group still owed for earlier requests", owed: "the rest of an earlier delay" };
function line(now) {
  if (!now.waiting) return "";
  const first = now.next_ms > 0 ? `in ${span(now.next_ms)}` : "now", owes = now.debt_ms > 0 ? `; the group owes ${span(now.debt_ms)}` : "";
  return `; ${now.waiting} connection${now.waiting === 1 ? " waits" : "s wait"}, the next passes ${first}${owes}`;
}
function showThrottled(answer) {
  $("nobody").hidden = answer.throttled.length > 0;
  $("held").replaceChildren(...answer.throttled.map((one) => {
    const item = element("li"), left = span(Math.max(one.now.muted_ms, one.now.wait_ms));
    const where = one.set_in ? `, set ${one.set_in}` : "";
    item.append(element("strong", title(one)), element("span", ` ${left} more `, "bad"),
      element("span", `${one.setting} ${limit(one.kind, one.limit)} of ${one.level}${where}${fleet(one.now?.fleet)}; now ${now(one.kind, one.observed)}${line(one.now)}`, "quiet"));
    return item;
  }));
  fill("decisions", answer.decisions.map((one) => cells(element("tr"), [one.at.slice(11, 19), one.api ?? "-", named(one.user),
    named(one.client_id), one.kind, number(span(one.delay_ms)), because[one.why] ?? one.why])));
}
function held(one) {
  if (one.waiting_for !== null) return `waits ${span(one.waited_ms)} (${one.waiting_for})`;
  return one.muted_for_ms > 0 ? `muted ${span(one.muted_for_ms)}` : "-";
}
function showConnections(answer) {
  $("connections-shown").textContent = `${answer.shown} of ${answer.total}, those that are muted or wait first`;
  fill("connections", answer.connections.map((one) => cells(element("tr"), [one.peer, one.broker, named(one.user),
    named(one.client_ids.join(", ")), one.software ?? "-", number(String(one.in_flight)), number(held(one)),
    number(bytes(one.client_bytes)), number(bytes(one.broker_bytes)), number(span(one.idle_s * 1000))])));
}
function showLibraries(answer) {
  $("libraries-shown").textContent = answer.total ? `${answer.shown} of ${answer.total}, those that wait least first` : "No throttle long enough to see who waits (200 ms).";
  fill("libraries", answer.libraries.map((one) => {
    // As the report on obedience has it: a single one may have been sent before the client had read what it was told.
    const ignored = one.mute_ms ? one.ignored_ms / one.mute_ms : 0;
    const waits = ignored <= 0.05 ? "yes" : `${ignored > 0.5 ? "no" : "not always"}: went on sending in ${span(one.ignored_ms)} of ${span(one.mute_ms)}`;
    return cells(element("tr"), [named(one.library), one.version || "-", number(String(one.mutes)), number(String(one.ignored)),
      element("td", waits, waits === "yes" ? "good" : "bad")]);
  }));
}

const charts = {};
function chart(id, labels, colours, data) {
  const place = $(id), style = getComputedStyle(document.documentElement), of = (what) => style.getPropertyValue(what).trim();
  const width = Math.max(place.clientWidth, 200);
  if (charts[id] && charts[id].width === width) { charts[id].setData(data); return; }
  if (charts[id]) charts[id].destroy();
  const axis = { stroke: of("--soft"), grid: { stroke: of("--grid") }, ticks: { stroke: of("--grid") } };
  charts[id] = new uPlot({
    width, height: 180, legend: { show: labels.length > 1 }, cursor: { y: false }, scales: { y: { range: (u, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
    axes: [axis, { ...axis, size: 56 }],
    series: [{}, ...labels.map((label, index) => ({ label, stroke: of(colours[index]), width: 2, points: { show: false } }))],
  }, data, place);
}
function draw() {
  const history = state.history;
  if (!history) return;
  const here = Date.now() / 1000, times = history.age_s.map((age) => here - age);
  const one = history.counters.find((each) => key(each) === state.chosen) ?? history.counters[0];
  const blank = times.map(() => null);
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
  select.replaceChildren(...ordered.map((one) => { const option = element("option", title(one)); option.value = key(one); return option; }));
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
    $("status").className = ready.ready ? "" : "bad";
    $("status").textContent = `${ready.ready ? "ready" : `not ready: ${ready.reasons.join("; ")}`} · ${connections.total} connections, ${muted} muted${waiting ? `, ${waiting} waiting` : ""} · ${throttled.total} of ${quotas.total} counters throttled`;
  } catch (error) {
    $("status").className = "bad";
    $("status").textContent = `the sidecar does not answer (${error.message}); asking again`;
  }
  setTimeout(look, every.look);
}
async function remember() {
  try { showHistory(await (await ask("history")).json()); } catch (error) { /* the status line says so */ }
  setTimeout(remember, every.history);
}
$("filter").addEventListener("input", () => showGroups(state.groups.length));
$("counter").addEventListener("change", () => { state.chosen = $("counter").value; draw(); });
$("explain").addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new URLSearchParams({ format: "text" });
  for (const [field, value] of new FormData(event.target)) if (value) query.set(field, value);
  const shown = $("explanation");
  shown.hidden = false;
  try { shown.textContent = await (await ask(`explain?${query}`)).text(); } catch (error) { shown.textContent = error.message; }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const id of Object.keys(charts)) { charts[id].destroy(); delete charts[id]; } draw(); });
addEventListener("resize", draw);
look();
remember();
