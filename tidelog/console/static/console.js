// Fetches the page again every two seconds, and replaces those of its live parts (data-live) that have changed. Pages
// are complete without this script; reloading shows what is new.
"use strict";

const INTERVAL_MS = 2000;
const parts = () => [...document.querySelectorAll("[data-live][id]")];

async function refresh() {
  if (document.hidden || !document.getElementById("live").checked) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts()) {
    const next = fresh.getElementById(part.id);
    // While text is selected no part is replaced, and never a part with the keyboard's focus.
    const isHeld = part.contains(document.activeElement) || !getSelection().isCollapsed;
    if (next && !isHeld && next.innerHTML !== part.innerHTML) part.replaceWith(document.adoptNode(next));
  }
}

async function turn() {
  try {
    await refresh();
  } catch {
    // The broker does not answer; the next turn asks again.
  }
  setTimeout(turn, INTERVAL_MS);
}

if (parts().length) {
  const box = document.getElementById("live");
  box.closest("[hidden]").hidden = false;
  box.checked = true;
  setTimeout(turn, INTERVAL_MS);
}
