// The live feed: a WebSocket that reconnects by itself, or polling where WebSockets do not pass.
//
// A browser cannot send a token with a WebSocket, so an ordinary request with the token gets a ticket for each connection.

import { ask, Refusal } from "./api.js";

// All in seconds.
const DELAYS = [0.5, 1, 2, 4, 8, 10];
const LATE = 3;
const LOST = 10;
const POLL = 2;
const PROTOCOL = "headgate.live.v1";

export class Feed {
  state = "connecting"; // connecting, live, late, lost, locked
  tries = 0;
  polling = false;
  #unopened = 0; // Sockets in a row that never opened although there was a ticket.
  #heardAt = null;
  #triedAt = Infinity; // When the attempt began that has neither succeeded nor failed.
  #attempt = 0; // Only the newest attempt may change anything.

  /** `onFrame(frame)` gets every frame; `onState()` is called when `state` may have changed. */
  constructor({ onFrame, onState, onLocked }) {
    Object.assign(this, { onFrame, onState, onLocked });
    setInterval(() => this.#watch(), 500);
    document.addEventListener("visibilitychange", () => !document.hidden && this.state === "lost" && this.start());
  }

  /** Seconds since the last tick. */
  get silence() {
    return this.#heardAt === null ? 0 : (performance.now() - this.#heardAt) / 1000;
  }

  /** Connect now. */
  async start() {
    clearTimeout(this.timer);
    this.socket?.close();
    this.#triedAt = performance.now();
    const attempt = (this.#attempt += 1);
    const isCurrent = () => attempt === this.#attempt;
    try {
      await (this.polling ? this.#poll(isCurrent) : this.#open(isCurrent));
    } catch (error) {
      if (isCurrent()) this.#failed(error);
    }
  }

  async #open(isCurrent) {
    const { ticket } = await ask("POST", "/api/live/ticket", {});
    if (!isCurrent()) return;
    const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/api/live`, [PROTOCOL, `ticket.${ticket}`]);
    this.socket = socket;
    this.#unopened += 1;
    socket.onopen = () => (this.#unopened = 0);
    socket.onmessage = ({ data }) => isCurrent() && this.#take(JSON.parse(data));
    socket.onclose = ({ code }) => {
      if (!isCurrent()) return;
      if (this.#unopened >= 3 || code === 4429) this.polling = true;
      if (code === 4401) this.#failed(new Refusal(401));
      else if (code === 1001) this.#startIn(0.2);
      else this.#failed();
    };
  }

  async #poll(isCurrent) {
    const { hello, tick, tables } = await ask("GET", "/api/live");
    if (!isCurrent()) return;
    [hello, tick, tables].forEach((frame) => this.#take(frame));
    this.timer = setTimeout(() => this.start(), POLL * 1000);
  }

  #take(frame) {
    if (frame.type !== "tables") {
      clearTimeout(this.timer);
      this.#heardAt = performance.now();
      this.tries = 0;
      this.#become("live");
    }
    this.onFrame(frame);
  }

  #failed(error) {
    if ([401, 403, 429].includes(error?.status)) {
      this.#become("locked");
      this.onLocked(error);
    } else {
      this.#startIn(DELAYS[Math.min(this.tries, DELAYS.length - 1)] * (0.7 + 0.6 * Math.random()));
    }
  }

  #startIn(seconds) {
    this.tries += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), seconds * 1000);
    this.#become("lost");
  }

  /** A link that says nothing is not live, even if the socket is open. A service that hangs does not even refuse. */
  #watch() {
    const isHanging = performance.now() - this.#triedAt > LOST * 1000;
    if (this.state === "live" && this.silence > LATE) this.#become("late");
    else if (isHanging || (this.state === "late" && this.silence > LOST)) this.#failed();
    else if (this.silence > 1.4) this.onState(); // Gaps grow and countdowns go on.
  }

  #become(state) {
    const isNew = state !== this.state || state === "lost";
    this.state = state;
    this.#triedAt = Infinity;
    if (isNew) this.onState();
  }
}
