"use strict";
(() => {
  // Light and dark: a button, remembered for all pages; paper is light.
  const root = document.documentElement;
  const remembered = { get: () => { try { return localStorage.getItem("recarc-theme"); } catch { return null; } },
                       set: (value) => { try { localStorage.setItem("recarc-theme", value); } catch { /* private mode */ } } };
  if (remembered.get()) root.dataset.theme = remembered.get();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remembered.set(root.dataset.theme);
  });
  addEventListener("beforeprint", () => { root.dataset.before = root.dataset.theme || ""; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { if (root.dataset.before) root.dataset.theme = root.dataset.before; else delete root.dataset.theme; });
})();
