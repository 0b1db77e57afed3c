// Findings: what an operator should look at, and what to do about it.

import { age, number } from "./format.js";

const SKEW_MOST = 2; // the largest partition, over the mean

/** What an operator should look at: [kind, title, text]. */
export function findings(status) {
  return [...ofLeaders(status.leadership), ...status.views.flatMap((view) => ofView(view, status))];
}

function ofView({ view, job, replica, batches, partitions }, status) {
  const found = [];
  const why = job.why ? ` ${job.why}.` : "";
  if (job.state === "down") found.push(["bad", `The job of ${view} is down`, `Its last heartbeat came ${age(job.heard_ms)} ago. Answers go on, and get older. Start it again with stateside run.`]);
  if (job.state === "stopped") found.push(["warn", `The job of ${view} is stopped`, `For ${age(job.heard_ms)} now. Answers go on, and get older. Start it again with stateside run.`]);
  if (job.state === "removed") found.push(["", `${view} is not declared any more`, `Its last rows are served, as they were ${age(job.heard_ms)} ago. Declare it again, or move its folder away.`]);
  if (job.state === "failed") found.push(["bad", `The job of ${view} has failed`, `${why} Mend the cause, and start it again with stateside run.`]);
  if (job.state === "holding") found.push(["warn", `The job of ${view} waits`, `${why} It goes on by itself as soon as it can.`]);
  if (replica.trouble) found.push(["bad", `The replica of ${view} does not move on`, replica.trouble]);
  if (replica.lag_batches > 3) found.push(["warn", `The replica of ${view} is ${replica.lag_batches} batches behind`, "It applies them as fast as it can; if this stays so, the server’s machine is too busy."]);
  if (!replica.stamp) found.push(["warn", `${view} cannot be answered yet`, "Its replica is being loaded, or it has no batch."]);
  const sizes = Map.groupBy(partitions, ({ operator }) => operator);
  for (const [operator, some] of sizes) {
    const total = some.reduce((sum, { bytes: size }) => sum + size, 0);
    const skew = (Math.max(...some.map(({ bytes: size }) => size)) * some.length) / Math.max(1, total);
    if (skew > SKEW_MOST && total > 1e6) found.push(["warn", `The state of ${view} is skewed`, `The largest partition of operator ${operator} has ${number(skew, { maximumFractionDigits: 1 })} times the mean: its task takes longer than all others.`]);
  }
  const { cores, partitions: tasks } = batches.at(-1) ?? {};
  if (tasks < cores) found.push(["", `The state of ${view} has fewer partitions than Spark has cores`, `A batch has ${number(tasks)} tasks for ${number(cores)} cores. With the job stopped, stateside rescale --partitions ${cores} changes that.`]);
  const late = batches.slice(-10).reduce((sum, batch) => sum + batch.operators.reduce((all, one) => all + one.late, 0), 0);
  if (late && status.journal) found.push(["", `${number(late)} rows of the last batches came too late for ${view}`, "Billing makes notes of such events; other views drop them, as Spark does."]);
  return found;
}

function ofLeaders(told) {
  if (!told) return [];
  const { leader, standbys, lease_ms: leaseMs } = told;
  const ready = standbys.some((standby) => standby.heard_ms <= leaseMs);
  const next = ready ? "A standby takes over in a moment." : "Nobody stands by: start one with stateside run --standby.";
  if (!leader) return [["bad", "Nobody leads", `The last leader has stopped. ${next}`]];
  if (leader.heard_ms == null || leader.heard_ms > leaseMs) return [["bad", `The leader ${leader.identity} is not heard`, `It was killed, paused or cut off. ${next}`]];
  return ready ? [] : [["", "Nobody stands by", `If ${leader.identity} ends, nobody takes over. Start another one with stateside run --standby.`]];
}
