// The console: runs statements over the endpoints that every program uses, and shows what they give.
// What comes from the server becomes text nodes, never markup; pictures are shown as images, in which nothing runs.
"use strict";

const ROWS_MAX = 1000, FLUSH_MS = 200, REFRESH_MS = 5000, LISTED_MAX = 500, PICTURE_PX = 1000;
const FORM = "application/vnd.ksql.v1+json";
const $ = (id) => document.getElementById(id);
const session = { properties: {}, variables: {} };
let running = null; // AbortController of what is asked now

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (name === "className") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const button = (text, act) => make("button", { type: "button", onclick: act }, text);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// ------------------------------------------------------------------------------------------------ text

// What a ';' may hide in: strings, quoted names, comments.
const OPAQUE = /'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$)|`(?:[^`]|``)*(?:`|$)|--[^\n]*|\/\*[^]*?(?:\*\/|$)|;/g;
const BLANK = /^(?:\s|--[^\n]*(?:\n|$)|\/\*[^]*?\*\/)*/;

/** The statements of a script: where each begins and ends, behind its ';'. */
function split(script) {
  const found = [];
  let start = 0;
  const add = (stop, end) => {
    const begin = start + BLANK.exec(script.slice(start, stop))[0].length;
    if (script.slice(begin, stop).trim()) found.push({ begin, end, text: script.slice(begin, stop).trimEnd() });
    start = end;
  };
  for (const match of script.matchAll(OPAQUE)) if (match[0] === ";") add(match.index, match.index + 1);
  add(script.length, script.length);
  return found;
}

const isQuery = (text) => /^(?:SELECT|PRINT|WITH|\()/i.test(text);
const isEndless = (text) => /^PRINT/i.test(text) || /\bEMIT\b/i.test(text.replace(OPAQUE, " "));
const quoted = (name) => "`" + name.replaceAll("`", "``") + "`";

/** A part of a script with blanks before it, so that the server tells of the lines and columns of the whole. */
function inPlace(script, begin, end) {
  const lines = script.slice(0, begin).split("\n");
  return "\n".repeat(lines.length - 1) + " ".repeat(lines.at(-1).length) + script.slice(begin, end);
}

/** A number whose digits a JavaScript number does not keep. */
class Exact {
  constructor(source) { this.source = source; }
  toString() { return this.source; }
  toJSON() { return JSON.rawJSON ? JSON.rawJSON(this.source) : this.source; }
}

function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && String(value) !== context.source ? new Exact(context.source) : value);
}

/** "`ID` INTEGER KEY, `L` ARRAY<STRING>" as [name, type] of each. */
function columnsOf(schema) {
  const parts = [""];
  let depth = 0;
  for (const piece of schema.match(/`(?:[^`]|``)*`|[^`]/g) ?? []) {
    if ("<(".includes(piece)) depth += 1;
    if (">)".includes(piece)) depth -= 1;
    if (piece === "," && depth === 0) parts.push("");
    else parts[parts.length - 1] += piece;
  }
  return parts.map((part) => /^\s*`((?:[^`]|``)*)`\s*([^]*)$/.exec(part)).filter(Boolean).map((m) => [m[1].replaceAll("``", "`"), m[2]]);
}

function typeText({ type, fields, memberSchema, parameters }) {
  if (type === "ARRAY") return `ARRAY<${typeText(memberSchema)}>`;
  if (type === "MAP") return `MAP<STRING, ${typeText(memberSchema)}>`;
  if (type === "STRUCT") return `STRUCT<${fields.map((f) => `${f.name} ${typeText(f.schema)}`).join(", ")}>`;
  return parameters ? `${type}(${parameters.precision}, ${parameters.scale})` : type;
}

// ------------------------------------------------------------------------------------------------ asking

class Refused extends Error {
  constructor(told) { super(told.message); this.entities = told.entities ?? []; }
}

async function post(path, body, more = {}) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", body: JSON.stringify(body), ...more });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is it running?");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let told = { message: text || `${answer.status} ${answer.statusText}` };
  try { told = parse(text); } catch { /* as it came */ }
  throw new Refused(told);
}

async function ksql(text, more, asked = {}) {
  const { properties, variables } = session;
  const body = { ksql: text, streamsProperties: properties, sessionVariables: variables, ...asked };
  return parse(await (await post("ksql", body, more)).text());
}

/** Follow a query; `take` has each of its messages ({header}, {row}, {finalMessage}, {errorMessage}) as soon as it is whole. */
async function follow(sql, take, signal) {
  const body = { sql, properties: session.properties, sessionVariables: session.variables };
  const answer = await post("query-stream", body, { headers: { Accept: FORM }, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const message = (line) => {
    const text = line.replace(/^\[|,$/g, "");
    if (!text || text === "]") return true;
    for (const form of text.endsWith("]") ? [text, text.slice(0, -1)] : [text]) { // the last one closes the array
      let told;
      try { told = parse(form); } catch { continue; }
      take(told);
      return true;
    }
    return false; // not whole yet
  };
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const lines = (rest + read.value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (!message(line)) throw new Error(`the server sent what is no row: ${line.slice(0, 200)}`);
    if (message(rest)) rest = ""; // whole, though its end of line comes with the next one
  }
}

// ------------------------------------------------------------------------------------------------ showing

function block(title, ...children) {
  const made = make("article", {}, title ? make("h2", {}, title) : null, ...children);
  $("results").append(made);
  return made;
}

/** Times of records and windows, in ms since 1970, which people read as dates. */
const TIMES = new Set(["ROWTIME", "WINDOWSTART", "WINDOWEND"]);

function timeText(ms) {
  const time = new Date(Number(ms));
  return Number.isNaN(time.getTime()) ? String(ms) : time.toISOString();
}

function cell(value, isNumber, isTime) {
  if (value === null || value === undefined) return make("td", { className: "null" }, "null");
  if (isTime) return make("td", {}, timeText(value));
  const text = typeof value === "object" && !(value instanceof Exact) ? JSON.stringify(value) : String(value);
  return make("td", isNumber ? { className: "number" } : {}, text);
}

/** A table of rows: [name, type] of each column; `keepsLast`: of more rows than are shown the last are, else the first. */
class Grid {
  constructor(columns, keepsLast = false) {
    this.times = columns.map(([name, type]) => TIMES.has(name) && /^BIGINT/.test(type));
    this.numbers = columns.map(([, type], i) => !this.times[i] && /^(?:INTEGER|BIGINT|DOUBLE|DECIMAL)/.test(type));
    const heads = columns.map(([name, type], i) => make("th", { scope: "col", className: this.numbers[i] ? "number" : "" }, name, type ? make("small", { title: type }, type) : null));
    this.body = make("tbody");
    this.box = make("div", { className: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), this.body));
    this.keepsLast = keepsLast;
    this.count = 0;
    this.waiting = [];
    this.timer = null;
  }

  add(values, isGone = false) {
    this.count += 1;
    if (this.keepsLast || this.count <= ROWS_MAX) this.waiting.push([values, isGone]);
    if (this.waiting.length > ROWS_MAX) this.waiting.shift();
    this.timer ??= setTimeout(() => this.flush(), this.count === 1 ? 0 : FLUSH_MS);
  }

  flush() {
    const wasAtEnd = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 4;
    clearTimeout(this.timer);
    this.timer = null;
    this.body.append(...this.waiting.splice(0).map(([values, isGone]) =>
      make("tr", isGone ? { className: "gone", title: "this row was removed" } : {}, ...values.map((v, i) => cell(v, this.numbers[i], this.times[i])))));
    while (this.body.childElementCount > ROWS_MAX) this.body.firstChild.remove();
    if (this.keepsLast && wasAtEnd) this.box.scrollTop = this.box.scrollHeight;
    this.onflush?.();
  }
}

function gridOf(columns, rows) {
  const grid = new Grid(columns);
  rows.forEach((row) => grid.add(row));
  grid.flush();
  return grid.box;
}

function gridOfObjects(objects) {
  const names = [...new Set(objects.flatMap(Object.keys))];
  return gridOf(names.map((name) => [name, ""]), objects.map((each) => names.map((name) => each[name] ?? null)));
}

/** `isEditors`: the place that the error tells is one in the editor. */
function failed(error, isEditors = false) {
  const made = block(null, make("p", {}, error.message));
  made.classList.add("bad");
  const place = isEditors && /line (\d+), column (\d+)/.exec(error.message);
  if (!place) return;
  made.append(make("div", { className: "bar" }, button("Go to the place", () => {
    const script = $("editor").value;
    const before = script.split("\n").slice(0, place[1] - 1).join("\n").length + (place[1] > 1 ? 1 : 0);
    const at = before + Number(place[2]) - 1;
    const word = /^[\w$@]+|^./.exec(script.slice(at));
    $("editor").focus();
    $("editor").setSelectionRange(at, at + (word ? word[0].length : 0));
  })));
}

function showEntity(entity) {
  const { "@type": type, statementText, warnings, ...rest } = entity;
  for (const warning of warnings ?? []) block(null, make("p", {}, warning.message ?? JSON.stringify(warning)));
  if (type === "currentStatus") return block(null, make("p", {}, entity.commandStatus.message));
  if (type === "rows") {
    const note = entity.note ? make("p", { className: "foot" }, entity.note) : null;
    return block(entity.title, gridOf(entity.columns.map((name) => [name, ""]), entity.rows), note);
  }
  if (type === "sourceDescription") return showSource(entity.sourceDescription);
  if (type === "queryDescription") return showPlan(statementText, entity.queryDescription);
  const many = Object.values(rest).find((value) => Array.isArray(value) && (!value.length || typeof value[0] === "object"));
  if (many?.length) return block(type.replaceAll("_", " "), gridOfObjects(many));
  if (many) return block(null, make("p", {}, `no ${type.replaceAll("_", " ")}`));
  if (typeof rest.message === "string") return block(null, make("p", {}, rest.message));
  return block(type.replaceAll("_", " "), make("pre", {}, JSON.stringify(rest, null, 2)));
}

function showSource(source) {
  const facts = `${source.type.toLowerCase()} over topic ${source.topic}, key ${source.keyFormat}, value ${source.valueFormat}`;
  const fields = source.fields.map((each) => [each.name, typeText(each.schema), each.type ?? ""]);
  const queries = [...source.writeQueries, ...source.readQueries].map((each) => button(each.id, () => openQuery(each.id)));
  const rows = `SELECT * FROM ${quoted(source.name)} EMIT CHANGES LIMIT 100;`;
  block(
    source.name,
    make("div", { className: "bar" }, button("Rows", () => run(rows)), button("To the editor", () => write(rows)), ...queries),
    gridOf([["column", ""], ["type", ""], ["", ""]], fields),
    source.statement ? make("pre", {}, source.statement) : null,
    make("p", { className: "foot" }, facts),
  );
}

/** How a query runs or would run: its picture, and its plan in words. */
async function showPlan(asked, described) {
  const place = make("div", { className: "picture" });
  block(
    described.id || "How it would run",
    place,
    make("details", {}, make("summary", {}, "Plan in words"), make("pre", {}, `${described.executionPlan}\n\n${described.topology}`)),
  );
  await draw(asked, place);
}

async function draw(asked, place) {
  try {
    const { properties, variables } = session;
    const answer = await post("console/picture", { ksql: asked, streamsProperties: properties, sessionVariables: variables });
    const url = URL.createObjectURL(await answer.blob());
    const image = make("img", { alt: "The topology: topics, steps and stores, and what flows between them", src: url });
    image.addEventListener("load", () => {
      URL.revokeObjectURL(url);
      image.style.minWidth = `${Math.min(image.naturalWidth, PICTURE_PX)}px`; // fits, as long as it can be read
    });
    place.replaceChildren(image);
  } catch (error) {
    place.replaceChildren(make("p", {}, error.message));
  }
}

// ------------------------------------------------------------------------------------------------ running

/** Do one thing at a time: what was asked before is stopped. */
async function alone(act) {
  running?.abort();
  const mine = (running = new AbortController());
  $("results").replaceChildren();
  $("stop").disabled = false;
  try {
    await act(mine.signal);
  } catch (error) {
    if (error.name !== "AbortError" && running === mine) failed(error);
  } finally {
    if (running === mine) {
      running = null;
      $("stop").disabled = true;
      refresh();
    }
  }
}

/** Run a script, maybe of the editor. Statements that follow each other go in one request; a query has its own. */
function run(script, isEditors = false) {
  return alone(async (signal) => {
    const statements = split(script);
    while (statements.length) {
      const first = statements.shift();
      if (isQuery(first.text)) {
        await query(script, first, signal, isEditors);
      } else if (/^(?:SET|UNSET|DEFINE|UNDEFINE)\b/i.test(first.text)) {
        await change(script, first, signal, isEditors);
      } else {
        let last = first, count = 1;
        const goesOn = (each) => each && !isQuery(each.text) && !/^(?:SET|UNSET|DEFINE|UNDEFINE)\b/i.test(each.text);
        for (; goesOn(statements[0]); count += 1) last = statements.shift();
        await command(script, first.begin, last.end, count, signal, isEditors);
      }
    }
  }).catch(() => {});
}

async function command(script, begin, end, count, signal, isEditors) {
  let entities;
  try {
    entities = await ksql(inPlace(script, begin, end), { signal }, { waitsUntilRead: true });
  } catch (error) {
    error.entities?.forEach(showEntity);
    return fail(error, isEditors);
  }
  entities.forEach(showEntity);
  if (count > entities.length) block(null, make("p", {}, `${plural(count - entities.length, "INSERT")} done`));
}

/** Show a fault at its place, and do nothing of what comes after it. */
function fail(error, isEditors) {
  if (error.name !== "AbortError") failed(error, isEditors);
  throw new DOMException("the rest is not run", "AbortError");
}

async function query(script, statement, signal, isEditors) {
  const foot = make("p", { className: "foot" }, "waiting for the first row …");
  const isPush = isEndless(statement.text);
  const own = new AbortController();
  signal.addEventListener("abort", () => own.abort());
  let grid = null, end = null;
  const tell = () => {
    const shown = grid && grid.count > ROWS_MAX ? `, the ${isPush ? "last" : "first"} ${plural(ROWS_MAX, "row")} shown` : "";
    foot.textContent = `${plural(grid?.count ?? 0, "row")}${shown}${end === null ? (isPush ? "; waiting for more" : " …") : end}`;
  };
  const take = ({ header, row, finalMessage, errorMessage }) => {
    if (header) {
      grid = new Grid(columnsOf(header.schema), isPush);
      grid.onflush = tell;
      block(null, grid.box, foot);
      tell();
    } else if (row) {
      grid.add(row.columns, row.tombstone);
      if (!isPush && grid.count > ROWS_MAX) own.abort();
    } else if (finalMessage) {
      end = `; ${finalMessage.toLowerCase()}`;
    } else if (errorMessage) {
      throw new Error(errorMessage.message);
    }
  };
  try {
    await follow(inPlace(script, statement.begin, statement.end), take, own.signal);
    end ??= "";
  } catch (error) {
    end = signal.aborted ? "; stopped" : grid?.count > ROWS_MAX && !isPush ? "; there are more, LIMIT says how many" : "; failed";
    if (error.name !== "AbortError" || signal.aborted) fail(error, isEditors);
  } finally {
    grid?.flush();
  }
}

const TEXT = "'((?:[^']|'')*)'";
const CHANGES = [
  [new RegExp(`^SET\\s+${TEXT}\\s*=\\s*${TEXT}$`, "i"), (name, value) => { session.properties[name] = value; }],
  [new RegExp(`^UNSET\\s+${TEXT}$`, "i"), (name) => { delete session.properties[name]; }],
  [new RegExp(`^DEFINE\\s+(\\w+)\\s*=\\s*${TEXT}$`, "i"), (name, value) => { session.variables[name.toUpperCase()] = value; }],
  [/^UNDEFINE\s+(\w+)$/i, (name) => { delete session.variables[name.toUpperCase()]; }],
];

/** SET and DEFINE belong to this page, and go along with what it asks; the server says whether they may be. */
async function change(script, statement, signal, isEditors) {
  try {
    await ksql(inPlace(script, statement.begin, statement.end), { signal });
  } catch (error) {
    fail(error, isEditors);
  }
  const [form, act] = CHANGES.find(([each]) => each.test(statement.text)) ?? [];
  if (!form) fail(new Error(`the server takes this, but not this page: write it without comments and backquotes\n${statement.text}`));
  act(...form.exec(statement.text).slice(1).map((part) => part?.replaceAll("''", "'")));
  showSettings();
}

function showSettings() {
  const chip = (text, of, name) => make("li", {}, text, make("button", {
    type: "button", "aria-label": `Take back ${name}`, onclick: () => { delete of[name]; showSettings(); } }, "×"));
  $("settings").replaceChildren(
    ...Object.entries(session.properties).map(([name, value]) => chip(`${name} = ${value}`, session.properties, name)),
    ...Object.entries(session.variables).map(([name, value]) => chip(`\${${name}} = ${value}`, session.variables, name)),
  );
}

// ------------------------------------------------------------------------------------------------ what there is

let known = { streams: [], tables: [], queries: [] };

async function refresh() {
  try {
    const [streams, tables, queries] = await ksql("SHOW STREAMS; SHOW TABLES; SHOW QUERIES;");
    known = { streams: streams.streams, tables: tables.tables, queries: queries.queries };
    $("server").className = "good";
    $("server").textContent = about;
    listAll();
  } catch (error) {
    $("server").className = "bad";
    $("server").textContent = error.message;
  }
}

function listAll() {
  const wanted = $("filter").value.toUpperCase();
  const list = (kind, nameOf, open, classOf = () => "") => {
    const found = known[kind].filter((each) => nameOf(each).toUpperCase().includes(wanted));
    const items = found.slice(0, LISTED_MAX).map((each) =>
      make("li", {}, make("button", { type: "button", className: classOf(each), title: each.state ?? each.topic ?? "", onclick: () => open(nameOf(each)) }, nameOf(each))));
    if (!found.length) items.push(make("li", { className: "none" }, "none"));
    if (found.length > LISTED_MAX) items.push(make("li", { className: "none" }, `and ${found.length - LISTED_MAX} more; filter by name`));
    $(kind).replaceChildren(...items);
    $(`${kind}-count`).textContent = known[kind].length;
  };
  const focused = document.activeElement?.closest("nav li");
  const at = focused && [focused.parentElement, [...focused.parentElement.children].indexOf(focused)];
  list("streams", (each) => each.name, openSource);
  list("tables", (each) => each.name, openSource);
  list("queries", (each) => each.id, openQuery, (each) => `state ${each.state}`);
  at?.[0].children[at[1]]?.firstElementChild?.focus();
}

const openSource = (name) => alone(async (signal) => (await ksql(`DESCRIBE ${quoted(name)};`, { signal })).forEach(showEntity));

function openQuery(id) {
  return alone(async (signal) => {
    const asked = `EXPLAIN ${quoted(id)};`;
    const [{ queryDescription: found }] = await ksql(asked, { signal });
    const control = (verb) => button(verb, async () => {
      if (verb === "Terminate" && !confirm(`Terminate ${id}? What it has written stays.`)) return;
      try {
        await ksql(`${verb.toUpperCase()} ${quoted(id)};`);
        await (verb === "Terminate" ? alone(async () => block(null, make("p", {}, `${id} is terminated`))) : openQuery(id));
      } catch (error) { failed(error); }
    });
    const rates = make("div", { className: "plain" });
    const measure = button("Measure for a second", async () => {
      measure.disabled = true;
      try {
        const [told] = await ksql(`EXPLAIN ANALYZE ${quoted(id)};`, { signal });
        const types = told.columns.map((name) => [name, name === "STEP" ? "" : "DOUBLE"]);
        rates.replaceChildren(gridOf(types, told.rows), make("p", { className: "foot" }, told.note ?? ""));
        rates.querySelectorAll("th small").forEach((each) => each.remove());
      } catch (error) { if (error.name !== "AbortError") failed(error); }
      measure.disabled = false;
    });
    const other = found.state === "PAUSED" ? "Resume" : "Pause";
    block(
      make("span", { className: `state ${found.state}` }, id),
      make("div", { className: "bar" }, found.state, measure, control(other), control("Terminate"), ...found.sinks.map((each) => button(each, () => openSource(each)))),
      ...found.queryErrors.map((each) => make("p", {}, each.errorMessage)),
      make("pre", {}, found.statementText),
      rates,
    );
    await showPlan(asked, { ...found, id: "How it runs" });
  });
}

// ------------------------------------------------------------------------------------------------ the page

let about = "";
const editor = $("editor");

function write(text) {
  editor.value = text;
  keep();
  editor.focus();
}

function keep() {
  try { localStorage.setItem("logflume.editor", editor.value); } catch { /* a browser may keep nothing */ }
}

function chosen() {
  const { selectionStart: start, selectionEnd: end, value } = editor;
  return start === end ? value : inPlace(value, start, end);
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); run(chosen(), true); });
$("stop").addEventListener("click", () => running?.abort());
$("filter").addEventListener("input", listAll);
$("explain").addEventListener("click", () => {
  const script = chosen();
  const wanted = split(script).find((each) => isQuery(each.text) || /^(?:CREATE|INSERT|EXPLAIN)/i.test(each.text));
  alone(async (signal) => {
    if (!wanted) throw new Error("expected a query in the editor: SELECT, CREATE ... AS SELECT or INSERT INTO ... SELECT");
    const asked = /^EXPLAIN/i.test(wanted.text) ? wanted.text : `EXPLAIN ${wanted.text}`;
    (await ksql(`${asked};`, { signal })).forEach(showEntity);
  });
});
editor.addEventListener("input", keep);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(chosen(), true); }
  if (event.key === "Escape") running?.abort();
});

async function start() {
  if (matchMedia("(max-width: 760px)").matches) document.querySelectorAll("nav details").forEach((each) => { each.open = false; });
  try { editor.value = localStorage.getItem("logflume.editor") ?? ""; } catch { /* likewise */ }
  try {
    const { KsqlServerInfo: info } = await (await fetch("info")).json();
    about = `logflume ${info.version}, service ${info.ksqlServiceId}`;
  } catch { /* `refresh` says so */ }
  await refresh();
  setTimeout(goOn, REFRESH_MS);
}

/** Look again and again, each time after the last answer has come. */
async function goOn() {
  if (!document.hidden) await refresh();
  setTimeout(goOn, REFRESH_MS);
}

start();
