// Dark or light, before anything is painted: what was chosen on this browser, else what the system says.
// A classic script on purpose: a module would run after the first paint.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("bireme-theme");
    } catch {
      return null; // a browser that keeps nothing
    }
  };
  const apply = () => {
    document.documentElement.dataset.theme = chosen() || (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("bireme:theme"));
  };
  system.addEventListener("change", apply);
  document.addEventListener("bireme:switch-theme", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("bireme-theme", next);
    } catch {
      // then it is so until the next page
    }
    document.documentElement.dataset.theme = next;
    document.dispatchEvent(new Event("bireme:theme"));
  });
  apply();
})();
