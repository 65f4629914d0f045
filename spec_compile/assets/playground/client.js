// The server's API as this page uses it. The key is an argument, and kept nowhere here.

const base = new URL("v1/", document.baseURI);

export class Problem extends Error {
    constructor(message, status = 0) {
        super(message);
        this.status = status;
    }
}

export async function firstModel(key) {
    const answer = await request("models", { headers: headers(key) });
    return (await answer.json()).data[0];
}

// Calls `take` with each event of a stream; returns when the server says that it is complete.
export async function stream(path, body, key, signal, take) {
    const answer = await request(path, {
        method: "POST",
        headers: { ...headers(key), "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal,
    });
    for await (const data of events(answer.body)) {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Problem(event.error.message);
        take(event);
    }
    throw new Problem("The connection ended before the answer did.");
}

function headers(key) {
    return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
    const everywhere = { cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" };
    let answer;
    try {
        answer = await fetch(new URL(path, base), { ...everywhere, ...options });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem("The server cannot be reached.");
    }
    if (!answer.ok) throw new Problem(await explanation(answer), answer.status);
    return answer;
}

async function explanation(answer) {
    try {
        return String((await answer.json()).error.message);
    } catch {
        return `The server answered with status ${answer.status}.`;
    }
}

async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
        const { value, done } = await reader.read().catch((error) => {
            if (error.name === "AbortError") throw error;
            throw new Problem("The connection was lost.");
        });
        if (done) return;
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
            if (block.startsWith("data: ")) yield block.slice(6);
        }
    }
}
