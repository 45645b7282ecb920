
"use strict";
(() => {
  /* The page says everything without this script. It only brings the words of a decision to its mark, and moves about. */
  const find = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const main = document.querySelector("main"), chart = byId("chart"), card = byId("card"), filter = byId("filter"), help = byId("help");
  const marks = find(".chart a.m");
  let current = null, pinned = null, isSilent = false;

  /* --- the card: the words of one decision --- */

  const decisionOf = (mark) => byId(mark.getAttribute("href").slice(1));

  const place = (mark) => {
    const box = mark.getBoundingClientRect(), own = card.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const below = box.bottom + 8;
    const top = below + own.height > innerHeight - 8 ? Math.max(8, box.top - own.height - 8) : below;
    card.style.left = `${left}px`;
    card.style.top = `${top}px`;
  };

  const show = (mark) => {
    card.replaceChildren(...[...decisionOf(mark).childNodes].map((child) => child.cloneNode(true)));
    card.hidden = false;
    for (const other of find("a.m.on")) other.classList.remove("on");
    mark.classList.add("on");
    mark.setAttribute("aria-describedby", "card");
    place(mark);
  };

  const hide = () => {
    card.hidden = true;
    card.classList.remove("pinned");
    card.setAttribute("role", "tooltip");
    card.removeAttribute("aria-label");
    for (const other of find("a.m.on")) {
      other.classList.remove("on");
      other.removeAttribute("aria-describedby");
    }
    pinned = null;
  };

  /* Whoever closed the card has read it: the focus comes back without it. */
  const leave = () => {
    const mark = pinned;
    hide();
    if (!mark) return;
    isSilent = true;
    mark.focus({ preventScroll: true });
    isSilent = false;
  };

  const pin = (mark) => {
    show(mark);
    pinned = mark;
    card.classList.add("pinned");
    card.setAttribute("role", "dialog");
    card.setAttribute("aria-label", "Decision and its evidence");
    const row = document.createElement("p"), link = document.createElement("a"), close = document.createElement("button");
    row.className = "go";
    link.href = mark.getAttribute("href");
    link.textContent = "In the list of decisions";
    link.addEventListener("click", () => {
      hide();
      const list = document.querySelector("details.decisions");
      if (list) list.open = true;
    });
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", leave);
    row.append(link, close);
    card.append(row);
    place(mark);
    close.focus({ preventScroll: true });
  };

  const markOf = (event) => event.target instanceof Element ? event.target.closest("a.m") : null;
  main.addEventListener("pointerover", (event) => {
    const mark = markOf(event);
    if (mark && !pinned) show(mark);
  });
  main.addEventListener("pointerout", (event) => {
    if (!markOf(event) || pinned) return;
    if (document.activeElement === current && current) show(current);
    else hide();
  });
  main.addEventListener("focusin", (event) => {
    const mark = markOf(event);
    if (!mark) return;
    rove(mark);
    if (!pinned && !isSilent) show(mark);
  });
  main.addEventListener("focusout", () => { if (!pinned) hide(); });
  main.addEventListener("click", (event) => {
    const mark = markOf(event);
    if (!mark) return;
    event.preventDefault();
    if (pinned) hide();
    rove(mark);
    pin(mark);
  });
  addEventListener("scroll", () => { if (!card.hidden) { const mark = find("a.m.on")[0]; if (mark) place(mark); } }, { passive: true });
  document.addEventListener("pointerdown", (event) => {
    if (pinned && event.target instanceof Element && !card.contains(event.target) && !markOf(event)) hide();
  });

  /* --- one tab stop, and keys that move it --- */

  const rove = (mark) => {
    if (current) current.setAttribute("tabindex", "-1");
    current = mark;
    mark.setAttribute("tabindex", "0");
  };
  for (const mark of marks) mark.setAttribute("tabindex", "-1");
  if (marks.length) rove(marks[0]);

  const isShown = (element) => !element.closest(".off") && !(element.closest("details:not([open])") && !element.closest("summary"));
  const rowOf = (mark) => mark.closest(".row");
  const marksOf = (row) => find("a.m", row);
  const xOf = (mark) => parseFloat(mark.querySelector("use").getAttribute("x"));
  const go = (mark) => {
    if (!mark) return;
    for (let group = mark.closest("details"); group; group = group.parentElement.closest("details")) group.open = true;
    rove(mark);
    mark.focus({ preventScroll: true });
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(mark);
  };
  const beside = (mark, step) => {
    const row = marksOf(rowOf(mark));
    go(row[Math.min(Math.max(row.indexOf(mark) + step, 0), row.length - 1)]);
  };
  const across = (mark, step) => {
    const rows = find(".chart .row").filter((row) => row.querySelector("a.m") && isShown(row));
    const row = rows[rows.indexOf(rowOf(mark)) + step];
    if (!row) return;
    const x = xOf(mark);
    go(marksOf(row).reduce((best, other) => (Math.abs(xOf(other) - x) < Math.abs(xOf(best) - x) ? other : best)));
  };
  const openings = find('a.m[aria-label^="quarantine_opened "]', chart);
  const episode = (step) => {
    const shown = openings.filter((mark) => !mark.closest(".off"));
    if (!shown.length) { byId("say").textContent = "There is no episode"; return; }
    const here = shown.indexOf(current);
    let next;
    if (here >= 0) next = (here + step + shown.length) % shown.length;
    else {
      const later = shown.findIndex((mark) => current && current.compareDocumentPosition(mark) & Node.DOCUMENT_POSITION_FOLLOWING);
      const after = later < 0 ? 0 : later;
      next = step > 0 ? after : (after - 1 + shown.length) % shown.length;
    }
    go(shown[next]);
    byId("say").textContent = `Episode ${next + 1} of ${shown.length}`;
  };

  main.addEventListener("keydown", (event) => {
    const mark = markOf(event);
    if (!mark || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = marksOf(rowOf(mark));
    const moves = {
      ArrowLeft: () => beside(mark, -1), ArrowRight: () => beside(mark, 1),
      ArrowUp: () => across(mark, -1), ArrowDown: () => across(mark, 1),
      Home: () => go(row[0]), End: () => go(row[row.length - 1]),
      Enter: () => pin(mark), " ": () => pin(mark),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });

  /* --- view: filter, theme, times --- */

  const groups = find(".nodeg", chart).map((group) => ({
    group,
    name: group.querySelector("summary").textContent.toLowerCase(),
    rows: find(".row.dev", group).map((row) => ({ row, words: row.textContent.toLowerCase() })),
    quiet: find(".quiet", group).map((row) => ({ row, words: row.textContent.toLowerCase() })),
  }));
  const tableRows = find("table.episodes tbody tr, table.alerts tbody tr").map((row) => ({ row, words: row.textContent.toLowerCase() }));
  const apply = () => {
    const wanted = filter.value.trim().toLowerCase();
    let count = 0;
    for (const { group, name, rows, quiet } of groups) {
      const whole = name.includes(wanted);
      let some = false;
      for (const { row, words } of rows) {
        const keep = whole || words.includes(wanted);
        row.classList.toggle("off", !keep);
        if (keep) { some = true; count += 1; }
      }
      for (const { row, words } of quiet) {
        const keep = whole || words.includes(wanted);
        row.classList.toggle("off", !keep);
        some = some || keep;
      }
      group.classList.toggle("off", !some && !whole);
    }
    for (const { row, words } of tableRows) row.classList.toggle("off", !words.includes(wanted));
    byId("shown").textContent = `${count} ${count === 1 ? "row" : "rows"}`;
    if (current && !isShown(current)) {
      const first = marks.find(isShown);
      if (first) rove(first);
    }
    if (pinned && !isShown(pinned)) hide();
  };
  filter.addEventListener("input", apply);

  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const turn = () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; };

  const two = (number) => String(number).padStart(2, "0");
  const local = (iso) => {
    const at = new Date(iso);
    const ms = at.getMilliseconds();
    const off = -at.getTimezoneOffset(), sign = off < 0 ? "-" : "+";
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}${ms ? `.${String(ms).padStart(3, "0")}` : ""}`;
    return { day, clock, zone: `${sign}${two(Math.floor(Math.abs(off) / 60))}:${two(Math.abs(off) % 60)}` };
  };
  let isLocal = false;
  const times = () => {
    isLocal = !isLocal;
    byId("zone").setAttribute("aria-pressed", String(isLocal));
    for (const element of find("time")) {
      if (!element.dataset.utc) element.dataset.utc = element.textContent;
      const at = local(element.dateTime);
      element.textContent = isLocal ? `${at.day} ${at.clock}${at.zone}` : element.dataset.utc;
    }
    for (const label of find("text[data-t]")) {
      if (!label.dataset.utc) label.dataset.utc = label.textContent;
      const at = local(label.dataset.t), form = label.dataset.utc;
      label.textContent = !isLocal ? form : form.length === 8 ? at.clock : form.includes(":") ? at.clock.slice(0, 5) : at.day.slice(5);
    }
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const zone of find(".zone")) zone.textContent = isLocal ? name : "UTC";
    hide();
  };

  const keys = () => { if (help.open) help.close(); else help.showModal(); };
  byId("theme").addEventListener("click", turn);
  byId("zone").addEventListener("click", times);
  byId("next").addEventListener("click", () => episode(1));
  byId("prev").addEventListener("click", () => episode(-1));
  byId("keys").addEventListener("click", keys);
  byId("shut").addEventListener("click", () => help.close());

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && !card.hidden) { leave(); return; }
    if (event.target instanceof HTMLInputElement) {
      if (event.key === "Escape") { filter.value = ""; apply(); }
      return;
    }
    const does = { n: () => episode(1), p: () => episode(-1), "/": () => filter.focus(), t: turn, u: times, "?": keys };
    if (!does[event.key]) return;
    event.preventDefault();
    does[event.key]();
  });

  addEventListener("beforeprint", () => { for (const group of find(".nodeg, details.decisions, details.ledger")) group.open = true; });
  document.querySelector(".tools").hidden = false;
})();
