// What a page of the site looks like: its width, boxes that are cut off, broken words, pale text.
(() => {
  const article = document.querySelector("article") ?? document.querySelector("main");
  const boxes = [...article.querySelectorAll("pre, table")];

  const scrolls = (element) => {
    for (; element && element.tagName !== "ARTICLE"; element = element.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(element).overflowX)) return true;
    }
    return false;
  };

  const overflows = (box) => box.scrollWidth > box.clientWidth + 1;

  const longest = (box) => Math.max(...box.innerText.split("\n").map((line) => line.length));

  const texts = function* (root) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) yield walk.currentNode;
  };

  // a browser may break a line after a hyphen or a slash
  const broken = function* (box) {
    for (const node of texts(box)) {
      for (const word of node.data.matchAll(/[^\s\-\/\u2013|]+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const tops = [...range.getClientRects()].map((each) => each.top);
        if (tops.length && Math.max(...tops) - Math.min(...tops) > 4) yield word[0];
      }
    }
  };

  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);

  // relative luminance, as in the Web Content Accessibility Guidelines
  const luminance = (colour) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = numbers(colour).map((each) => linear(each / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };

  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0.5) return colour;
    }
    return "rgb(255, 255, 255)";
  };

  const contrast = (element) => {
    const style = getComputedStyle(element);
    const front = luminance(element.closest("svg") ? style.fill : style.color);
    const back = luminance(behind(element));
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  };

  const pale = function* () {
    if (article.tagName !== "ARTICLE") return; // the theme's own page for searches
    for (const node of texts(article)) {
      const element = node.parentElement;
      const hidden = ["STYLE", "SCRIPT", "title"].includes(element.tagName);
      if (hidden || !node.data.trim() || !element.getClientRects().length) continue;
      if (contrast(element) < 4.5) yield node.data.trim().slice(0, 40);
    }
  };

  const named = (found) => found.map((box) => box.innerText.slice(0, 60));
  return {
    width: document.documentElement.scrollWidth,
    cut: named(boxes.filter((box) => overflows(box) && !scrolls(box))),
    scrolled: named(
      boxes.filter((box) => box.tagName === "PRE" && overflows(box) && longest(box) <= 100),
    ),
    broken: boxes.flatMap((box) => [...broken(box)]),
    pale: [...pale()],
    background: luminance(behind(article)),
  };
})();
