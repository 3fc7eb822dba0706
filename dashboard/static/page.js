// The browser's side of dashboard/README.md: links and controls become addresses, addresses become events.
(() => {
  "use strict";
  const LIVE_EVERY = 2000, TYPING = 400, LOST = 15000;
  const TURNS = ["page", "after", "docafter"]; // parameters by which a list goes on
  let fire = null, root = null, busy = 0, again = false, polls = 0, refused = false;
  let waiting = false, cut = false; // for an answer; in vain, as Gradio sends nothing after a lost connection
  let typing = 0; // the timer of a control that is being typed into
  let place = null; // goes to where the page that is asked for is read on, if that is not its beginning
  const opened = new WeakMap(); // whether a person left a <details> open: a redraw sets all as they came

  const here = () => location.pathname + location.search, loaded = here();
  const asked = (name) => new URLSearchParams(location.search).get(name);

  // A browser that blocks site data throws: what is kept then lasts as long as the document.
  function kept(where, name) { try { return window[where].getItem(name); } catch { return null; } }
  function keep(where, name, value) { try { window[where].setItem(name, value); } catch { /* see kept */ } }

  // Theme: as the system says, unless chosen.
  const THEMES = ["system", "light", "dark"];
  let preferred = kept("localStorage", "theme");
  function theme(name) {
    const dark = name === "dark" || (name === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[name];
  }
  function chosen() {
    const wanted = asked("theme") || kept("localStorage", "theme") || preferred;
    return THEMES.includes(wanted) ? wanted : "system";
  }
  theme(chosen());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(chosen()));

  // Asking for a page; one at a time, the newest address wins.
  function look() {
    if (!fire) return;
    if (busy) { again = true; return; }
    document.documentElement.dataset.busy = "1";
    ask("click", { url: here() });
  }
  function ask(event, what) {
    waiting = true;
    clearTimeout(busy); busy = setTimeout(lost, LOST);
    fire(event, what);
  }
  // No answer: nothing serves any more, or only clicks are refused, as behind a proxy that names another host.
  async function lost() {
    busy = 0;
    if (again) { again = false; look(); return; }
    offline(true);
    const serial = window.recover.serial, empty = { method: "POST", body: "{}", signal: AbortSignal.timeout(5000) };
    const answer = await fetch("/gradio_api/run/predict", empty).catch(() => null);
    if (window.recover.serial !== serial) return; // the page has arrived meanwhile
    refused = answer !== null && answer.status === 403;
    offline(true);
  }
  function go(url, push) {
    clearTimeout(typing);
    place = null;
    if (push) { history.replaceState({ y: scrollY }, ""); history.pushState(null, "", url); }
    else history.replaceState(history.state, "", url);
    look();
  }
  function arrived() {
    clearTimeout(busy); busy = 0;
    waiting = cut = false;
    delete document.documentElement.dataset.busy;
    refused = false; offline(false);
    adopt();
    if (again) { again = false; look(); } else if (place) { const there = place; place = null; there(); }
  }
  let path = null; // of the page that is shown: the address may be on its way to another
  function adopt() {
    root = document.getElementById("root");
    if (!root) return;
    document.title = root.dataset.title;
    theme(chosen());
    const shown = root.dataset.path, moved = path !== null && path !== shown;
    if (path !== shown) { path = shown; fill(); }
    keepNotice();
    for (const control of root.querySelectorAll("select[data-param]")) choose(control);
    for (const one of root.querySelectorAll("details")) if (opened.has(one)) one.open = opened.get(one);
    if (moved) { scrollTo(0, 0); const main = document.getElementById("main"); if (main) main.focus({ preventScroll: true }); }
    for (const form of root.querySelectorAll("form[data-action]")) {
      for (const [name, value] of drafts[subject(form)] ?? []) form.elements[name].value = value;
      if (root.dataset.done && content(form) === sent.content) { form.reset(); draft(form, []); remember({}); }
    }
    delete root.dataset.done;
    window.recover.serial = (window.recover.serial || 0) + 1;
  }
  // What an action answered stays until the next one, or another address: a redraw comes without it.
  let notice = null;
  function keepNotice() {
    const said = document.getElementById("said");
    if (!said) return;
    if (said.firstChild) notice = { at: here(), node: said.firstChild.cloneNode(true) };
    else if (notice && notice.at === here()) said.append(notice.node.cloneNode(true));
    else notice = null;
  }
  function say(words) {
    const line = document.createElement("p");
    line.className = "notice"; line.textContent = words;
    document.getElementById("said").replaceChildren(line);
    keepNotice();
  }
  function offline(is) {
    const said = document.getElementById("offline");
    if (!said) return;
    said.hidden = !is && !refused;
    if (refused) said.textContent = "Clicks are refused: a proxy in front has to pass the Host header on";
    else said.textContent = is ? "The dashboard does not answer: start `recover dashboard` again" : "";
  }

  // Controls: [data-param] is a parameter of the address.
  function fill() {
    for (const control of document.querySelectorAll("#root [data-param]")) {
      const value = asked(control.dataset.param);
      if (control.type === "checkbox") control.checked = value === "1";
      else if (control.tagName !== "SELECT" && control !== document.activeElement) control.value = value || "";
    }
  }
  // A list shows what the address names, if it offers that, else what the page was drawn with.
  function choose(control) {
    const value = asked(control.dataset.param), offered = [...control.options];
    const wanted = offered.find((one) => one.value === value) || offered.find((one) => one.hasAttribute("selected"));
    if (wanted && !wanted.selected) wanted.selected = true;
  }
  function changed(control) {
    const given = new URLSearchParams(location.search);
    const value = control.type === "checkbox" ? (control.checked ? "1" : "") : control.value;
    if (value) given.set(control.dataset.param, value); else given.delete(control.dataset.param);
    for (const other of root.querySelectorAll("input[data-param]")) { // a field beside a list names the same
      if (other !== control && other.dataset.param === control.dataset.param) other.value = value;
    }
    const reset = control.dataset.reset === "*" ? [...given.keys()] : (control.dataset.reset || "").split(" ");
    for (const name of reset) if (name !== control.dataset.param) given.delete(name);
    const address = given.toString();
    go(location.pathname + (address ? "?" + address : ""), control.tagName === "SELECT");
  }
  function typed(event) {
    const control = event.target.closest?.("#root [data-param]");
    if (!control) return;
    clearTimeout(typing);
    const text = control.type === "search" || control.type === "text" || control.type === "number";
    typing = setTimeout(() => changed(control), text ? TYPING : 0);
  }
  document.addEventListener("input", (event) => { if (!event.isComposing) typed(event); });
  document.addEventListener("compositionend", typed); // an input method's last input event is a composing one

  // Where the next part of a list is read on: at its top, from which the keyboard goes on too.
  function begin(list) {
    list.tabIndex = -1;
    list.focus({ preventScroll: true });
    list.scrollIntoView();
  }

  // Links within the dashboard are events, so nothing is loaded anew.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#theme");
    if (button) {
      preferred = THEMES[(THEMES.indexOf(chosen()) + 1) % 3];
      keep("localStorage", "theme", preferred);
      theme(preferred);
      return;
    }
    const summary = event.target.closest?.("#root summary");
    if (summary) opened.set(summary.parentElement, !summary.parentElement.open);
    const link = event.target.closest?.("#root a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const href = link.getAttribute("href") ?? link.getAttributeNS("http://www.w3.org/1999/xlink", "href");
    if (!fire || !href || href.startsWith("#") || link.hasAttribute("download")) return;
    const url = new URL(href, location.href);
    if (url.origin !== location.origin) return;
    event.preventDefault();
    const turned = link.closest(".pager") && TURNS.some((name) => url.searchParams.get(name) !== asked(name));
    go(url.pathname + url.search, true);
    if (turned) { const list = link.closest("section"); place = () => begin(list); } // the link may be gone by then
    if (url.pathname === path) setTimeout(fill, 0);
  });
  addEventListener("popstate", (event) => {
    clearTimeout(typing);
    const y = event.state?.y;
    place = y === undefined ? null : () => scrollTo(0, y);
    fill(); look();
  });

  // "/" goes to the search, as in many places.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
    const search = document.querySelector("#root input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  });

  // What is typed into a form stays with its subject (reviewing.py) while a person looks at other pages. The address
  // then names the cycle: without a number it goes on to a newer one.
  const drafts = JSON.parse(kept("sessionStorage", "drafts") ?? "{}"), subject = (form) => form.parentElement.localName;
  function draft(form, filled) {
    drafts[subject(form)] = filled;
    keep("sessionStorage", "drafts", JSON.stringify(drafts));
  }
  document.addEventListener("input", (event) => {
    const form = event.target.closest?.("#root form[data-action]");
    if (!form) return;
    draft(form, [...new FormData(form)]);
    const number = form.elements.cycle.value;
    if (busy || asked("n") === number) return;
    const given = new URLSearchParams(location.search);
    given.set("n", number);
    history.replaceState(history.state, "", location.pathname + "?" + given);
  });

  // Forms: [data-action] sends its fields with the launch's token; what is sent twice has one name, so it is done once.
  let sent = JSON.parse(kept("sessionStorage", "sent") ?? "{}"); // the newest form's content and the name of its click, until it is done
  const content = (form) => JSON.stringify([...new FormData(form)]);
  function remember(what) {
    sent = what;
    keep("sessionStorage", "sent", JSON.stringify(sent));
  }
  const newName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("#root form[data-action]");
    if (!form) return;
    event.preventDefault();
    if (!fire || !root) { say("The review was not sent, as the page is still loading: try again."); return; }
    if (sent.content !== content(form)) remember({ content: content(form), click: newName() });
    const fields = { ...Object.fromEntries(new FormData(form)), click: sent.click };
    ask("submit", { url: here(), action: form.dataset.action, token: root.dataset.token, fields });
    say("No answer yet: if this stays, send the review again. It is recorded once.");
  });

  // Live: ask whether the page has changed, fetch it only then.
  async function live() {
    if (document.hidden || !root) return;
    try {
      const answer = await fetch("/live?url=" + encodeURIComponent(here()), { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const { version } = await answer.json();
      polls += 1; window.recover.polls = polls;
      offline(false);
      if (cut && (kept("sessionStorage", "drafts") ?? "{}") === JSON.stringify(drafts)) location.reload();
      else if (version !== root.dataset.version && !busy) look();
    } catch { cut ||= waiting; offline(true); }
  }
  setInterval(live, LIVE_EVERY);
  document.addEventListener("visibilitychange", live);

  window.recover = {
    // Gradio's component is there. The page that came with the document moves in as it is, so nothing is
    // fetched or drawn twice, and what has been typed, opened or focused in it stays.
    start(trigger, watch, element) {
      fire = trigger;
      watch("value", arrived);
      const first = document.getElementById("first"), focused = document.activeElement;
      document.documentElement.dataset.ready = "1";
      if (!first) { look(); return; }
      element.replaceChildren(...first.childNodes);
      first.remove();
      if (element.contains(focused)) focused.focus({ preventScroll: true });
      if (here() !== loaded) look(); // chosen meanwhile
    },
  };
  document.addEventListener("DOMContentLoaded", () => {
    adopt();
    const form = root?.querySelector("form[data-action]");
    if (form && content(form) === sent.content) say("This review may not have been recorded: send it again. It is recorded once.");
  });
})();
