// Numbers, times and names as people read them.

const NAMES = {
  sliding_window: ["Sliding window", "Window"],
  token_bucket: ["Token bucket", "Bucket"],
  exponential_backoff: ["Exponential backoff", "Backoff"],
};

export const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** The text with a capital and a full stop. */
export const sentence = (text) => capitalised(text) + (!text || /[.!]$/.test(text) ? "" : ".");

export const algorithmName = (name) => NAMES[name]?.[0] ?? capitalised(String(name ?? "–").replaceAll("_", " "));
export const shortName = (name) => NAMES[name]?.[1] ?? algorithmName(name);

/** A function of numbers that answers a dash for anything else. */
const ofNumber = (write) => (value) => (Number.isFinite(value) ? write(value) : "–");

const { format } = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }); // Made once: that takes longer than writing a number.
export const whole = ofNumber(format);

/** About three digits, so that a number does not change its width every second. */
export const short = ofNumber((value) => (value >= 9.95 || value === 0 ? whole(value) : value.toFixed(1)));
export const percent = ofNumber((share) => short(100 * share));
export const millis = ofNumber((us) => (us >= 99_950 ? whole(us / 1000) : (us / 1000).toFixed(us >= 9995 ? 1 : 2)));

/** 57.5 million; 1,265. */
export const large = ofNumber((value) => {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} billion`;
  return value >= 1e6 ? `${(value / 1e6).toFixed(1)} million` : whole(value);
});

export const plural = (many, one, more = `${one}s`) => `${whole(many)} ${many === 1 ? one : more}`;

const two = (number) => String(number).padStart(2, "0");

/** The time of day of a second since 1970. */
export const clockTime = ofNumber((at) => new Date(at * 1000).toTimeString().slice(0, 8));

/** 0:34; 27:24; 3:02:11. */
export function countdown(seconds) {
  if (seconds === null) return "no end";
  const left = Math.max(0, Math.ceil(seconds));
  const [hours, minutes] = [Math.floor(left / 3600), Math.floor((left % 3600) / 60)];
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(left % 60)}`;
}

/** 44 s; 3 min 11 s; 2 h 5 min. */
export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  if (total >= 172_800) return `${Math.floor(total / 86_400)} days`;
  const [unit, big, small] = total < 3600 ? [60, "min", "s"] : [3600, "h", "min"];
  const rest = Math.floor((total % unit) / (unit / 60));
  return `${Math.floor(total / unit)} ${big}${rest ? ` ${rest} ${small}` : ""}`;
}

const WINDOWS = { 1: "a second", 60: "a minute", 3600: "an hour", 86_400: "a day" };

/** "100 in a minute". */
export const rateWords = (limit, window) => `${whole(limit)} in ${WINDOWS[window] ?? duration(window)}`;

export const WINDOW_OPTIONS = Object.entries(WINDOWS);
export const SPAN_OPTIONS = [[600, "10 min"], [3600, "1 hour"], [86_400, "1 day"], [604_800, "1 week"]];

/** Seconds since 1970, of a moment that the service tells in ISO 8601. */
export const momentOf = (text) => Date.parse(text) / 1000;
