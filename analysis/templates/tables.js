// Tables are sorted by their headings (sortable.min.js does it) and filtered by what is typed. Without a script they
// are plain tables.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
  }
  const rows = [...table.tBodies[0].rows];
  const form = document.createElement("p");
  form.className = "filter";
  const label = document.createElement("label");
  const field = document.createElement("input");
  field.type = "search";
  field.setAttribute("aria-label", `Filter: ${table.dataset.name}`);
  label.append("Filter ", field);
  const told = document.createElement("output");
  form.append(label, " ", told);
  table.parentElement.before(form);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    told.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
  });
  // A link to a client: what tables of clients have of it.
  const follow = () => {
    if (![...table.tHead.rows[0].cells].some((head) => head.textContent === "client id")) return;
    field.value = decodeURIComponent(location.hash.slice(1));
    field.dispatchEvent(new Event("input"));
  };
  addEventListener("hashchange", follow);
  if (location.hash) follow();
}
