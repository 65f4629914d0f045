// The figures of one answer, by the formulas that the runtime's own statistics have.

const byId = (id) => document.getElementById(id);

export class Figures {
    constructor() {
        this.rounds = this.drafted = this.accepted = this.emitted = 0;
        this.milliseconds = this.first = 0;
        this.draftedAt = [];
        this.acceptedAt = [];
        this.waiting = false;
        this.draw();
    }

    add(rounds) {
        for (const round of rounds) this.count(round);
        if (rounds.length && !this.waiting) {
            this.waiting = true;
            requestAnimationFrame(() => this.draw());
        }
    }

    count(round) {
        if (!this.rounds) this.first = round.milliseconds;
        this.rounds += 1;
        this.drafted += round.num_draft_tokens;
        this.accepted += round.num_accepted_tokens;
        this.emitted += round.num_emitted_tokens;
        this.milliseconds += round.milliseconds;
        for (let place = 0; place < round.num_draft_tokens; place += 1) {
            this.draftedAt[place] = (this.draftedAt[place] ?? 0) + 1;
            this.acceptedAt[place] =
                (this.acceptedAt[place] ?? 0) + (place < round.num_accepted_tokens);
        }
    }

    draw() {
        this.waiting = false;
        show("acceptance_rate", this.drafted && percent(this.accepted / this.drafted));
        show("block_efficiency", this.rounds && (this.emitted / this.rounds).toFixed(2));
        show("tokens_per_second", this.speed && this.speed.toFixed(this.speed < 100 ? 1 : 0));
        show("ttft", this.rounds && `${this.first.toFixed(this.first < 10 ? 1 : 0)} ms`);
        byId("counts").textContent = this.rounds ? this.summary() : "";
        this.drawChart();
    }

    summary() {
        const drafted = this.drafted
            ? `, ${this.accepted} of ${this.drafted} draft tokens accepted`
            : "";
        return `${counted(this.emitted, "token")} in ${counted(this.rounds, "round")}${drafted}`;
    }

    get speed() {
        return this.milliseconds && (1000 * this.emitted) / this.milliseconds;
    }

    // In a few words, for the end of an answer.
    get brief() {
        const accepted = this.drafted ? `, ${percent(this.accepted / this.drafted)} accepted` : "";
        return `${counted(this.emitted, "token")}${accepted}, ${Math.round(this.speed)} tokens/s`;
    }

    drawChart() {
        const chart = byId("chart");
        while (chart.children.length > this.draftedAt.length) chart.lastChild.remove();
        while (chart.children.length < this.draftedAt.length) {
            chart.append(emptyBar(chart.children.length + 1));
        }
        this.draftedAt.forEach((drafted, place) => {
            const share = percent(this.acceptedAt[place] / drafted);
            const [value, bar] = chart.children[place].querySelectorAll(".value, .bar");
            value.textContent = share;
            bar.style.height = share.replace(" ", "");
        });
        byId("chart_note").hidden = this.draftedAt.length > 0;
    }
}

export function counted(number, noun) {
    return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function emptyBar(place) {
    const item = document.createElement("li");
    const space = part(item, "space");
    part(space, "value");
    part(space, "bar");
    part(item, "place").textContent = place;
    return item;
}

function part(parent, name) {
    const made = document.createElement("div");
    made.className = name;
    parent.append(made);
    return made;
}

function show(id, text) {
    byId(id).textContent = text || "–";
}

function percent(share) {
    return `${Math.round(100 * share)} %`;
}
