// What the form asks for, in the fields of the API.

const byId = (id) => document.getElementById(id);
const numbers = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"];

export function isChat() {
    return byId("modes").querySelector(":checked").value === "chat";
}

export function key() {
    return byId("key").value.trim();
}

export function body(model, prompt, history) {
    const wanted = { model: model.id, stream: true, return_token_kinds: true };
    for (const name of numbers) {
        if (byId(name).value !== "") wanted[name] = byId(name).valueAsNumber;
    }
    const stops = byId("stops")
        .value.split("\n")
        .filter((line) => line !== "");
    if (stops.length) wanted.stop = stops;
    if (!byId("speculative").checked) wanted.speculative = false;
    if (!isChat()) return { ...wanted, prompt };
    const system = byId("system").value;
    const first = system ? [{ role: "system", content: system }] : [];
    return { ...wanted, messages: [...first, ...history, { role: "user", content: prompt }] };
}

export function showModel(model) {
    const about = model.spec_compile;
    const drafts = about.num_drafts > 1 ? `${about.num_drafts} drafts of ` : "";
    const facts = [
        model.id,
        `rule ${about.acceptance}`,
        `${drafts}k = ${about.num_speculative_tokens}`,
        `context ${model.max_model_len}`,
    ];
    byId("model").replaceChildren(...facts.map(chip));
    byId("max_tokens").max = about.max_tokens;
    byId("max_tokens").value = Math.min(byId("max_tokens").value || 256, about.max_tokens);
    if (about.acceptance === "greedy") byId("temperature").value = 0;
    byId("temperature").disabled = about.acceptance === "greedy";
    const chat = byId("modes").querySelector("[value=chat]");
    chat.disabled = !about.has_chat_template;
    chat.parentElement.title = chat.disabled ? "This bundle has no chat template" : "";
}

export function showMode() {
    const chat = isChat();
    byId("system_field").hidden = !chat;
    byId("prompt").placeholder = chat ? "Your message" : "Text to continue";
}

// Without a draft there is one kind of token; with one, that kind is rare.
export function showLegend() {
    byId("legend").querySelector("[data-kind=target]").hidden = byId("speculative").checked;
}

function chip(text) {
    const made = document.createElement("span");
    made.textContent = text;
    return made;
}
