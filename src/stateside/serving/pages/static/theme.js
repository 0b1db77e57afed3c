// Runs before anything is drawn: the colours that were chosen here last, else those of the system.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("stateside-theme");
  } catch {
    // a browser that keeps nothing
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
