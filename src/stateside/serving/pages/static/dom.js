// Making elements. Texts are always texts: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with these attributes and children. `onclick` and the like are listeners; null children are left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Put these children in the place of those that an element has. */
export function put(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** Set a text, if it is another one: what does not change is not told again by screen readers. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const ICONS = {
  sun: ["M12 7.5a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9z", "M12 2.500v2M12 19.500v2M4.600 4.600 6 6M18 18l1.400 1.400M2.500 12h2M19.500 12h2M4.600 19.400 6 18M18 6l1.400-1.400"],
  moon: ["M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z"],
  out: ["M14 4h4a2 2 0 0 1 2 2v12a2 2 0 0 1-2 2h-4M10 16l-4-4 4-4M6 12h10"],
  file: ["M14 3H7a2 2 0 0 0-2 2v14a2 2 0 0 0 2 2h10a2 2 0 0 0 2-2V8zM14 3v5h5M9 13h6M9 17h6"],
  alert: ["M12 8.500v4.500M12 16.500v.01", "M10.300 3.900 2.400 17.600A2 2 0 0 0 4.100 20.500h15.800a2 2 0 0 0 1.700-2.900L13.700 3.900a2 2 0 0 0-3.400 0z"],
  down: ["m6 9 6 6 6-6"],
  search: ["M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20.500 20.500 16 16"],
  play: ["M7 4.500v15l12-7.500z"],
  save: ["M12 4v11M7.500 11 12 15.500 16.500 11M4.500 19.500h15"],
  eye: ["M2.500 12S6 5.500 12 5.500 21.500 12 21.500 12 18 18.500 12 18.500 2.500 12 2.500 12z", "M12 9.500a2.500 2.500 0 1 0 0 5 2.500 2.500 0 0 0 0-5z"],
  lock: ["M6 11h12v9H6zM8.500 11V8a3.500 3.500 0 0 1 7 0v3"],
};

/** A small picture that says nothing to screen readers: what it stands for is written beside it, or its button's name. */
export function icon(name) {
  const paths = ICONS[name].map((d) => svg("path", { d }));
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, ...paths);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}
