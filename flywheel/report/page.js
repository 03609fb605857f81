// A link may lead into a folded part: unfold what holds the target, and everything but logs for paper.
function unfold() {
  let node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = node;
  for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  const own = target && target.querySelector(":scope > details");
  if (own) own.open = true;
  if (target) target.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", unfold);
addEventListener("load", () => location.hash && unfold());
addEventListener("beforeprint", () => {
  document.querySelectorAll(".effects details, .figures details").forEach((one) => { one.open = true; });
});
