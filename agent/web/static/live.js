// Keeps an unfinished study's page up to date without a reload. The page reads as well without this script.
"use strict";
(() => {
  const pause = 1500;
  const open = new Set(["waiting", "running"]);
  let failures = 0;

  function swap(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    const shown = document.getElementById("live");
    if (!fresh || fresh.isEqualNode(shown)) return;
    const opened = [...shown.querySelectorAll("details")].map((part) => part.open);
    fresh.querySelectorAll("details").forEach((part, i) => { part.open = Boolean(opened[i]); });
    const buttons = [...shown.querySelectorAll("a, button, summary, [tabindex]")];
    const at = buttons.indexOf(document.activeElement);
    // The status line announces itself to screen readers only where it stays the same element.
    const status = shown.querySelector("[role=status]");
    const words = fresh.querySelector("[role=status]");
    if (status && words) {
      if (status.innerHTML !== words.innerHTML) status.replaceChildren(...words.childNodes);
      words.replaceWith(status);
    }
    shown.dataset.state = fresh.dataset.state;
    shown.replaceChildren(...fresh.childNodes);
    if (at >= 0) [...shown.querySelectorAll("a, button, summary, [tabindex]")][at]?.focus();
    note("Updates by itself.");
  }

  function note(words) {
    const place = document.querySelector("[data-reload]");
    if (place && place.textContent !== words) place.textContent = words;
  }

  async function look() {
    try {
      if (!document.hidden) {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok) throw new Error(String(answer.status));
        swap(await answer.text());
        failures = 0;
      }
    } catch {
      failures += 1;
      note("The server does not answer; trying again.");
    }
    if (open.has(document.getElementById("live").dataset.state)) {
      setTimeout(look, pause * Math.min(2 ** failures, 20));
    }
  }

  note("Updates by itself.");
  setTimeout(look, pause);
})();
