// The last fifteen minutes, second by second, and which algorithm decided when.

const SPAN = 900;
const ROOM = 1024; // A ring: second n is at n % ROOM.
const COLUMNS = ["allowed", "denied", "p99_us", "burst_ratio"];

export class History {
  constructor() {
    this.begin({ history: { from: null, allowed: [] } });
  }

  /** Start over with what the service remembers. */
  begin({ history, switches = [], started }) {
    this.at = new Float64Array(ROOM).fill(-1); // Which second is in each place.
    this.columns = Object.fromEntries(COLUMNS.map((name) => [name, new Float64Array(ROOM).fill(NaN)]));
    this.newest = null;
    this.started = started ?? history.from;
    this.alone = history.alone ?? [];
    this.switches = switches;
    this.#fill(history.from, history);
  }

  /** Take in what a tick says, including corrections of earlier seconds. */
  add({ at, seconds, seen, latency_us: latency, traffic, switch: changed }) {
    this.#fill(seconds.from, seconds);
    this.#set(at, "p99_us", latency?.p99);
    this.#set(at, "burst_ratio", traffic?.burst_ratio);
    if (seen === "node") this.#extendAlone(at);
    if (changed && this.switches.at(-1)?.epoch !== changed.epoch) this.switches.push(changed);
    if (this.switches.length > 200) this.switches.shift();
  }

  #fill(from, lists) {
    for (const name of COLUMNS) lists[name]?.forEach((value, at) => this.#set(from + at, name, value));
  }

  #extendAlone(second) {
    const last = this.alone.at(-1);
    if (last && second - last[1] <= 3) last[1] = Math.max(last[1], second + 1);
    else this.alone.push([second, second + 1]);
    if (this.alone.length > 200) this.alone.shift();
  }

  #set(second, name, value) {
    const place = second % ROOM;
    if (this.at[place] > second) return;
    if (this.at[place] < second) {
      this.at[place] = second;
      for (const column of Object.values(this.columns)) column[place] = NaN;
    }
    this.columns[name][place] = value ?? NaN;
    this.newest = Math.max(this.newest, second);
  }

  get(second, name) {
    const place = second % ROOM;
    return this.at[place] === second ? this.columns[name][place] : NaN;
  }

  /** One number for each of the `many` seconds up to and including `last`; NaN where nothing is known. */
  values(last, many, name) {
    const found = [];
    for (let second = last - many + 1; second <= last; second += 1) found.push(this.get(second, name));
    return found;
  }

  /** Which algorithm decided between two moments: {from, to, began, algorithm, reason, epoch, isSwitch}. */
  periods(from, to) {
    const found = [];
    this.switches.forEach((one, at) => {
      const ends = Math.min(to, this.switches[at + 1]?.at ?? Infinity);
      if (ends <= from || one.at >= to) return;
      // A pin or an unpin of the same algorithm is no switch.
      if (found.at(-1)?.algorithm === one.to) found.at(-1).to = ends;
      else found.push({ ...one, began: one.at, isSwitch: one.from !== null, from: Math.max(from, one.at), to: ends, algorithm: one.to });
    });
    return found;
  }

  /** The period that a second lies in; undefined if nobody knows. */
  periodAt(second) {
    return this.periods(second, second + 1).at(-1);
  }

  /** How often the algorithm has changed since a moment. */
  changes(since) {
    return Math.max(0, this.periods(since, Infinity).length - 1);
  }

  /** Totals by minute, newest first. */
  minutes(last) {
    const rows = new Map();
    for (let second = last; second > last - SPAN; second -= 1) {
      const [allowed, denied] = [this.get(second, "allowed"), this.get(second, "denied")];
      if (Number.isNaN(allowed)) continue;
      const minute = second - (second % 60);
      const row = rows.get(minute) ?? { minute, allowed: 0, denied: 0, most: 0 };
      rows.set(minute, row);
      row.allowed += allowed;
      row.denied += denied;
      row.most = Math.max(row.most, allowed + denied);
    }
    return [...rows.values()];
  }
}
