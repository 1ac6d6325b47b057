// Fetches the page again every two seconds and puts its live parts in place of those that are shown. Without this
// script all pages are whole; reloading shows what is new.
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
    // What a person has marked, or moved to by keyboard, stays.
    const isHeld = part.contains(document.activeElement) || !getSelection().isCollapsed;
    if (next && !isHeld && next.innerHTML !== part.innerHTML) part.replaceWith(document.adoptNode(next));
  }
}

async function turn() {
  try {
    await refresh();
  } catch {
    // The broker is away; the next turn asks again.
  }
  setTimeout(turn, INTERVAL_MS);
}

if (parts().length) {
  const box = document.getElementById("live");
  box.closest("[hidden]").hidden = false;
  box.checked = true;
  setTimeout(turn, INTERVAL_MS);
}
