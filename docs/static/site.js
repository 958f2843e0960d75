// The sidebar is longer than most screens: it opens at the page that is shown.
const sidebar = document.querySelector(".sidebar-scroll");
const shown = [...document.querySelectorAll(".sidebar-tree .current-page")].pop();
if (sidebar && shown) {
  const [top, height] = [sidebar.getBoundingClientRect().top, sidebar.clientHeight];
  sidebar.scrollTop = shown.getBoundingClientRect().top - top - height / 2;
}

// The search: words lead to their sections, pages are ranked and opened by their best section, and all is shown at
// once (docs/extensions/search_words.py).
if (typeof Search !== "undefined") {
  const stems = (text) => {
    const stemmer = new Stemmer();
    return splitQuery(text.toLowerCase().replaceAll("_", " ")).map((word) => stemmer.stemWord(word));
  };
  const titled = (page, id) => {
    const [[, top]] = SECTIONS[page];
    const title = SECTIONS[page].find((section) => section[0] === id)?.[1];
    return title && title !== top ? `${top} > ${title}` : top;
  };

  const ofWords = (query) => {
    const asked = new Set(stems(query));
    const found = Object.entries(WORDS).filter(([word]) => stems(word).every((stem) => asked.has(stem)));
    found.sort(([a], [b]) => stems(b).length - stems(a).length || b.length - a.length);
    return found.map(([, target]) => {
      const [page, id = ""] = target.split("#");
      return [page, titled(page, id), id && `#${id}`, null, 0, "", "title"];
    });
  };

  // The section of each page that has most terms, most often and in its title.
  Search.performTermsSearch = (terms) => {
    const begins = (term) => new RegExp(`(?<![a-z0-9])${_escapeRegExp(term).replace(/i$/, "[iy]")}`, "g");
    const patterns = [...terms].map(begins);
    const count = (pattern, text) => text.toLowerCase().match(pattern)?.length ?? 0;
    const all = Object.entries(SECTIONS).flatMap(([page, sections]) =>
      sections.map(([id, title, text], index) => {
        const scores = patterns
          .map((pattern) => 4 * Math.min(count(pattern, title), 1) + Math.log2(1 + count(pattern, text)))
          .filter(Boolean);
        const score = scores.reduce((sum, one) => sum + one, 0) / patterns.length;
        return { known: scores.length, result: [page, titled(page, id), index ? `#${id}` : "", null, score, "", "text"] };
      }),
    );
    const most = Math.max(1, ...all.map(({ known }) => known));
    const best = new Map();
    for (const { known, result } of all) {
      if (known === most && !(best.get(result[0])?.[4] >= result[4])) best.set(result[0], result);
    }
    return [...best.values()];
  };

  const summary = (page, anchor, terms) => {
    const text = SECTIONS[page]?.find(([id], index) => (anchor ? `#${id}` === anchor : !index))?.[2] ?? "";
    const places = [[...terms].join("_"), ...terms].map((term) => text.toLowerCase().indexOf(term));
    const place = places.find((one) => one >= 0) ?? 0;
    const from = place > 80 ? text.lastIndexOf(" ", place - 80) + 1 : 0;
    return `${from ? "… " : ""}${text.slice(from, from + 200)}${from + 200 < text.length ? " …" : ""}`;
  };

  Search.query = (query) => {
    const [text, terms, ...others] = Search._parseQuery(query);
    const shown = new Set();
    for (const [page, title, anchor, about, , , kind] of [
      ...ofWords(query),
      ...Search._performSearch(text, terms, ...others).reverse(),
    ]) {
      if (shown.has(page + anchor)) continue;
      shown.add(page + anchor);
      const item = Search.output.appendChild(document.createElement("li"));
      item.className = `kind-${kind}`;
      const link = item.appendChild(document.createElement("a"));
      link.href = page + DOCUMENTATION_OPTIONS.LINK_SUFFIX + anchor;
      link.textContent = title;
      if (about) item.append(` (${about})`);
      const context = item.appendChild(document.createElement("p"));
      context.className = "context";
      context.textContent = summary(page, anchor, terms);
      others[1].forEach((term) => _highlightText(item, term, "highlighted"));
    }
    _finishSearch(shown.size);
  };
}
