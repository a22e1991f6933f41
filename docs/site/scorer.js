/* The order of search results. Sphinx counts words of any heading and of the text alike, and leads to the top of a page.
 * Here a result leads to the heading that has most of what was asked for; guides come before fields of a class and before
 * pages about the project. Its only way in is `Scorer` (html_search_scorer); what it reads is searchindex.js. */
const About = {
  project: /^(CHANGELOG|CONTRIBUTING|THIRD_PARTY|bench\/|tests\/|orchestrator\/|docs\/(architecture|decisions|invariants)$)/,

  asked: () => new URLSearchParams(location.search).get("q") || "",

  list: /^docs\/(messages|glossary)$/, // the pages that explain come first

  words: () =>
    [...new Set(About.asked().toLowerCase().match(/[\w-]{2,}/g) || [])].map((word) =>
      word.length > 4 ? word.replace(/(ies|es|ed|ing|s|e)$/, "") : word,
    ),

  /** How much of the question a heading has, and how little else: 0 to 1.25. */
  share: (heading, words) => {
    const said = heading.toLowerCase().match(/[\w-]+/g) || [];
    const found = words.filter((word) => said.some((each) => (word.length < 4 ? each === word : each.startsWith(word)))).length;
    return found / words.length + (0.25 * Math.min(found, said.length)) / Math.max(said.length, 1);
  },

  /** The best heading of each page for this question, as [share, heading, id, share of the title and a bit]. */
  headings: (words) => {
    const best = new Map();
    for (const [heading, places] of Object.entries(Search._index.alltitles)) {
      const share = About.share(heading, words);
      for (const [page, id] of share >= 0.5 ? places : []) {
        const [most, , , title] = best.get(page) || [0, "", null, 0];
        const of_title = Math.max(title, id === null ? share + 0.2 : 0);
        best.set(page, share > most ? [share, heading, id, of_title] : [...best.get(page).slice(0, 3), of_title]);
      }
    }
    return best;
  },
};

var Scorer = {
  score: (result) => {
    const [page, title, anchor, description, score] = result;
    const asked = About.asked();
    if (description !== null) return asked.includes(".") && title.endsWith(asked) ? 40 : score; // a name of the Python API
    if (About.of !== location.search) {
      About.of = location.search;
      About.best = About.headings(About.words());
    }
    const number = Search._index.docnames.indexOf(page);
    const [share, heading, id, of_title] = About.best.get(number) || [0, "", null, 0];
    if (!anchor && id) {
      result[1] = `${Search._index.titles[number]} > ${heading}`;
      result[2] = `#${id}`;
    }
    return 5 + 15 * Math.max(share, of_title) - (About.project.test(page) ? 20 : About.list.test(page) ? 2 : 0);
  },
  objNameMatch: 14,
  objPartialMatch: 1,
  objPrio: { 0: 4, 1: 2, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
