// The sidebar is longer than most screens: it opens at the page that is shown.
const sidebar = document.querySelector(".sidebar-scroll");
const shown = [...document.querySelectorAll(".sidebar-tree .current-page")].pop();
if (sidebar && shown) {
  const [top, height] = [sidebar.getBoundingClientRect().top, sidebar.clientHeight];
  sidebar.scrollTop = shown.getBoundingClientRect().top - top - height / 2;
}
