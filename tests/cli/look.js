// What people would see of a page in a window that should not be there: content that sticks out of it, text that is hard to read,
// drawings with nothing in them.
function look(window) {
  const { document } = window, faults = [];
  const out = document.documentElement.scrollWidth - window.innerWidth;
  if (out > 0) faults.push(`the page is ${out} pixels wider than its window`);
  const numbers = (css) => css.match(/[\d.]+/g).map(Number);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(window.getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    throw new Error("a page has a background");
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement, style = window.getComputedStyle(element);
    const isDrawn = element.closest("svg, script, style, [hidden]") || element.getClientRects().length === 0;
    if (!node.textContent.trim() || isDrawn) continue;
    const [front, back] = [light(numbers(style.color)), light(behind(element))];
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    // WCAG 2.1, 1.4.3: text, and large text.
    const pixels = parseFloat(style.fontSize), isLarge = pixels >= 24 || (pixels >= 18.66 && style.fontWeight >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) faults.push(`contrast ${contrast.toFixed(1)} of ${node.textContent.trim().slice(0, 40)}`);
  }
  for (const canvas of document.querySelectorAll("canvas")) {
    const { width, height } = canvas, colours = new Set();
    const pixels = width && height ? canvas.getContext("2d").getImageData(0, 0, width, height).data : [];
    for (let at = 0; at < pixels.length && colours.size < 3; at += 4) colours.add(pixels.slice(at, at + 4).join());
    if (colours.size < 3) faults.push(`nothing is drawn in ${canvas.id}`);
  }
  return faults;
}
