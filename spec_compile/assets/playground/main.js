// Ties the page together: one request at a time, which Stop ends by closing its connection.

import { firstModel, Problem, stream } from "./client.js";
import { counted, Figures } from "./figures.js";
import * as form from "./form.js";
import { clear, Turn } from "./transcript.js";

const byId = (id) => document.getElementById(id);
let model = null;
let running = null; // the AbortController of the request under way
let history = [];

async function loadModel() {
    try {
        model = await firstModel(form.key());
        form.showModel(model);
        complain("");
    } catch (error) {
        explain(error);
    }
}

async function generate() {
    if (running) return;
    const prompt = byId("prompt").value;
    if (!prompt) return byId("prompt").focus();
    if (!model) await loadModel();
    if (!model || running) return;
    begin();
    const figures = new Figures();
    const turn = new Turn(prompt, form.isChat());
    const body = form.body(model, prompt, history);
    if (form.isChat()) byId("prompt").value = "";
    let reason = "";
    try {
        await stream(path(), body, form.key(), running.signal, (event) => {
            const [choice] = event.choices;
            reason = choice.finish_reason ?? reason;
            figures.add(choice.spec_compile?.rounds ?? []);
            turn.add(choice.spec_compile?.tokens ?? []);
            if (figures.rounds) say("Generating");
        });
    } catch (error) {
        reason = error.name === "AbortError" ? "stopped" : "failed";
        if (reason === "failed") explain(error);
    }
    finish(turn, figures, prompt, reason);
}

function begin() {
    running = new AbortController();
    complain("");
    say("Waiting for the first token");
    setBusy(true);
}

function finish(turn, figures, prompt, reason) {
    running = null;
    figures.draw();
    setBusy(false);
    if (!figures.rounds) {
        turn.remove();
        byId("prompt").value = prompt;
        say(reason === "stopped" ? "Stopped before the first token" : "");
        return;
    }
    const words = {
        stop: "Ended",
        length: "Reached the limit",
        stopped: "Stopped",
        failed: "Broken off",
    };
    const word = words[reason] ?? reason;
    turn.end(`${word} after ${figures.brief}`);
    say(`${word} after ${counted(figures.emitted, "token")}`);
    if (form.isChat() && turn.said) {
        history.push({ role: "user", content: prompt }, { role: "assistant", content: turn.said });
    }
}

function setBusy(busy) {
    const [ready, over] = busy ? ["stop", "send"] : ["send", "stop"];
    byId(ready).disabled = false;
    if (document.activeElement === byId(over)) byId(ready).focus(); // a disabled button loses it
    byId(over).disabled = true;
    byId("clear").disabled = byId("modes").disabled = busy;
}

function path() {
    return form.isChat() ? "chat/completions" : "completions";
}

function explain(error) {
    if (!(error instanceof Problem)) {
        console.error(error);
        return complain("Something went wrong in this page; the browser's console says more.");
    }
    if (error.status !== 401) return complain(error.message);
    complain(
        form.key()
            ? "The server refused this API key."
            : "This server asks for an API key. Enter it under “API key”.",
    );
    byId("key_panel").open = true;
    byId("key").focus();
}

function complain(text) {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
}

function say(text) {
    if (byId("status").textContent !== text) byId("status").textContent = text;
}

function startAnew() {
    history = [];
    clear();
    new Figures();
    complain("");
    say("");
    byId("prompt").focus();
}

byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
});
byId("form").addEventListener(
    "invalid",
    (event) => event.target.closest("details")?.setAttribute("open", ""),
    true,
);
byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    byId("form").requestSubmit();
});
document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", startAnew);
byId("key").addEventListener("change", loadModel);
byId("modes").addEventListener("change", () => {
    form.showMode();
    startAnew();
});
byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
});
byId("speculative").addEventListener("change", form.showLegend);
form.showMode();
form.showLegend();
loadModel();
