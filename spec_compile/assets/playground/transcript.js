// Prompts and answers. All text that comes from a user or a model becomes text nodes.

const box = document.getElementById("transcript");
const empty = document.getElementById("empty");

export class Turn {
    constructor(prompt, chat) {
        empty.hidden = true;
        this.element = make("article", `turn running${chat ? " chat" : ""}`);
        if (chat) {
            this.element.append(make("p", "who", "You"), make("div", "text prompt", prompt));
            this.element.append(make("p", "who", "Model"));
        }
        this.text = make("div", "text");
        this.text.classList.add("answer");
        if (!chat) this.text.append(make("span", "prompt", prompt));
        this.element.append(this.text);
        box.append(this.element);
        this.said = "";
        this.waiting = [];
        this.scrollToEnd();
    }

    // Drawn once a frame, however many chunks come within it.
    add(tokens) {
        if (tokens.length && !this.waiting.length) requestAnimationFrame(() => this.draw());
        this.waiting.push(...tokens);
    }

    draw() {
        const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
        for (const { text, kind } of this.waiting) {
            if (!text) continue;
            this.text.append(shownToken(text, kind));
            this.said += text;
        }
        this.waiting = [];
        if (follows) this.scrollToEnd();
    }

    end(note) {
        this.draw();
        this.element.classList.remove("running");
        this.element.append(make("p", "end", note));
        this.scrollToEnd();
    }

    remove() {
        this.element.remove();
        empty.hidden = box.querySelector(".turn") !== null;
    }

    scrollToEnd() {
        box.scrollTop = box.scrollHeight;
    }
}

export function clear() {
    for (const turn of box.querySelectorAll(".turn")) turn.remove();
    empty.hidden = false;
}

const labels = new Map();
for (const item of document.querySelectorAll("#legend [data-kind]")) {
    labels.set(item.dataset.kind, item.querySelector(".token").textContent);
}

// Line breaks with their indentation, and tokens of blanks alone, are marked more faintly.
function shownToken(text, kind) {
    const token = make("span", `token ${kind}`);
    token.title = labels.get(kind) ?? kind;
    const [blank] = text.match(/^\s*\n[ \t]*|^\s+$/) ?? [""];
    if (blank) token.append(make("span", "space", blank));
    if (text.length > blank.length) token.append(make("span", "ink", text.slice(blank.length)));
    return token;
}

function make(tag, classes, text = "") {
    const made = document.createElement(tag);
    made.className = classes;
    made.textContent = text;
    return made;
}
