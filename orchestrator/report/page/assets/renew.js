"use strict";
// A page that `tpujob top --open` serves asks for itself again and takes over what is new: what is open stays open, what has the
// focus keeps it, and where it is scrolled to it stays. `renewed(page)` is called with the new document. Other pages do nothing.
function renew(renewed) {
  const root = document.documentElement;
  if (!root.dataset.renews) return;
  const status = () => document.querySelector("[role=status]");
  const name = ({ id, name, value, dataset, textContent }) => id || (name ? `${name} ${value}` : "") || dataset.chart || textContent;
  const label = details => details.dataset.key ?? details.querySelector("summary").textContent;
  const key = element => element === document.body ? null : element.getAttribute("aria-label") || element.getAttribute("href") || (element.matches("summary") ? label(element.parentElement) : name(element));
  const places = () => new Map([...document.querySelectorAll("pre, .scroll")].map((each, i) => [i, [each.scrollTop, each.scrollLeft, each.scrollTop + each.clientHeight >= each.scrollHeight - 4]]));

  function take(page) {
    const open = new Map([...document.querySelectorAll("details")].map(each => [label(each), each.open]));
    const active = document.activeElement, focused = key(active), caret = active.selectionStart == null ? null : [active.selectionStart, active.selectionEnd], at = places(), seen = [scrollX, scrollY];
    for (const part of ["header.top", "main"]) document.querySelector(part).replaceWith(document.importNode(page.querySelector(part), true));
    for (const each of document.querySelectorAll("details")) each.open = open.get(label(each)) ?? each.open;
    root.dataset.renews = page.documentElement.dataset.renews ?? "";
    document.title = page.title;
    renewed(page);
    document.querySelectorAll("pre, .scroll").forEach((each, i) => {
      const [top, left, isAtEnd] = at.get(i) ?? [0, 0, true];
      each.scrollTop = isAtEnd && each.matches(".log") ? each.scrollHeight : top;
      each.scrollLeft = left;
    });
    const again = focused && [...document.querySelectorAll("a, button, input, summary, [tabindex]")].find(each => key(each) === focused);
    if (again) again.focus({ preventScroll: true });
    if (again && caret) again.setSelectionRange(...caret);
    scrollTo(...seen);
  }

  async function again() {
    let next = +root.dataset.renews;
    try {
      if (document.visibilityState === "visible" && !document.querySelector("main :active") && getSelection().isCollapsed) { // not while something is dragged or selected
        const answer = await fetch(location.pathname, { cache: "no-store" });
        if (!answer.ok) throw new Error(answer.status);
        take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    } catch {
      if (status()) status().textContent = "No answer: `tpujob top --open` has ended, or is busy.";
      next *= 2;
    }
    if (root.dataset.renews) setTimeout(again, next);
  }
  setTimeout(again, +root.dataset.renews);
}
